"""The engine of `ncclcheck logs` on what ranks of our own job printed when they died."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclcheck.probes.facts import Cluster, Measurements, together
from ncclcheck.probes.logs.nccl_lines.own import read_own
from ncclcheck.reports.judgement.judge import judge

FULL = "failed to extend /dev/shm/nccl-Kx1 to 9637892 bytes, error: No space left on device (28)"


def _folder(path: Path, host: str, pid: int, text: str) -> str:
    path.mkdir()
    (path / f"nccl.{pid}.log").write_text(f"{host}:{pid}:{pid} [0] misc/shmutils.cc:72 NCCL WARN Error: {text}\n")
    (path / "torchrun.log").write_text("W0314 torch/distributed/run.py:766] hello\n")
    return str(path)


def test_the_cause_is_named_on_its_node(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a", "vm", 771, FULL)
    logs = read_own("sim1", f"{folder}/torchrun.log", folder)
    assert {event.host for event in logs.events} == {"sim1"}
    cluster = Cluster(command="bench", measurements=Measurements(logs=logs))
    failed = {v.code: v for v in judge(cluster) if v.state.value == "fail"}
    assert [*failed] == ["LOG050"]
    assert failed["LOG050"].findings[0].where.node == "sim1"
    assert failed["LOG050"].findings[0].evidence[0].source == "sim1/nccl.771.log:1"


def test_logs_of_several_nodes_are_joined(tmp_path: Path) -> None:
    parts = []
    for name in ("a", "b"):
        folder = _folder(tmp_path / name, "vm", 771, FULL)
        parts.append(Measurements(logs=read_own(name, f"{folder}/torchrun.log", folder)))
    whole = together(parts).logs
    assert whole is not None
    assert {event.host for event in whole.events} == {"a", "b"}
    assert len(whole.files) == 4


def test_a_log_that_is_too_long_keeps_its_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclcheck.probes.logs.nccl_lines.own._MOST_BYTES", 1000)
    folder = _folder(tmp_path / "a", "vm", 771, FULL)
    Path(folder, "torchrun.log").write_text("x\n" * 5000 + "ValueError: the end\n")
    logs = read_own("a", f"{folder}/torchrun.log", folder)
    assert any(event.sign == "python-error" for event in logs.events)
    assert sum(file.bytes for file in logs.files) < 4000


def test_symptoms_are_left_to_the_other_checks_of_a_run(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a", "vm", 771, "a sentence that nobody knows")
    logs = read_own("a", f"{folder}/torchrun.log", folder)
    verdicts = judge(Cluster(command="bench", measurements=Measurements(logs=logs)))
    assert [v.code for v in verdicts if v.code.startswith("LOG") and v.state.value in ("fail", "warn")] == []
