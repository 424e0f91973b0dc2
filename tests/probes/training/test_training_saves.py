"""Real gloo ranks save, die and go on: what a sound place gives, and what is said of each that is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from ncclcheck.probes.facts import (
    Cluster,
    Host,
    Job,
    Measurements,
    Node,
    RankState,
    Run,
    Unread,
    replace,
    together,
)
from ncclcheck.probes.facts.training import Saves, Setup, Smoke
from ncclcheck.probes.facts.training.saves import ShardedSave
from ncclcheck.probes.job.context import TrainingPlan
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.run.plan import faults
from tests.conftest import ROOT
from tests.jobs.saves_job import Case

RULES = [rule for rule in all_rules() if "TRN013" <= rule.code <= "TRN018"]
FULL = "No space left on device"


def case(
    folder: Path,
    name: str,
    *injected: str,
    place: Path | None = None,
    asked: bool = True,
    save_bytes: int = 2**22,
    **more: Any,
) -> Case:
    plan = TrainingPlan(
        model="conv", steps=6, batch=4, budget_s=100.0, save_bytes=save_bytes, parameters=7e10,
        checkpoints=str(folder) if asked else "", run_folder=str((place or folder) / name),
    )  # fmt: skip
    return Case(
        name=name,
        plan=plan,
        injected=faults.injections(faults.read(injected, training=True), ["a"], 2, []),
        **more,
    )


def users(folder: Path, model: str) -> Case:
    """With BatchNorm where it can have it."""
    own = case(folder, model)
    kwargs = {"norm": True} if model == "Net" else {}
    given = {"model": f"trainees.py:{model}", "model_kwargs": kwargs, "data": "trainees.py:dataset"}
    own.plan = msgspec.structs.replace(own.plan, directory=str(ROOT / "tests/samples"), **given)
    return own


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture(scope="module")
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of 64 KiB; None where we may not mount one."""
    (place := folder / "disk").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True, check=False
    )
    yield None if mounted.returncode else place
    if not mounted.returncode:
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(scope="module")
def verdicts(folder: Path, small_disk: Path | None) -> dict[str, dict[str, Verdict]]:
    """Of all cases by name: two jobs, the second one goes on where a rank of the first was killed."""
    cases = [
        case(folder, "one file", "one-file"),
        case(folder, "unshared", wrong="unshared"),
        case(folder, "nowhere", place=folder / "missing"),
        case(folder, "unasked", place=folder / "missing", asked=False),
        *([case(folder, "full", place=small_disk)] if small_disk else []),
        case(folder, "large", save_bytes=2**18),
        *(users(folder, name) for name in ("Net", "Counting", "Late")),
        case(folder, "forgetful", wrong="forgetful"),
        case(folder, "healthy", dies=True),
    ]
    (folder / "cases.json").write_bytes(msgspec.json.encode(cases))
    assert _job(folder, "first") == [1, -9]
    assert _job(folder, "second") == [0, 0]
    measured = [_told(folder, turn) for turn in ("first", "second")]
    return {
        name: {v.code: v for v in judge(_cluster([turn[name] for turn in measured if name in turn]), RULES)}
        for name in measured[0]
    }


def _job(folder: Path, turn: str) -> list[int]:
    """Exit statuses of the ranks."""
    command = [sys.executable, "-m", "tests.jobs.saves_job"]
    env = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([*command, str(rank), "2", str(folder), turn], cwd=ROOT, stderr=subprocess.PIPE, env=env)
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=100)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    print(b"\n".join(errors).decode())
    return [rank.returncode for rank in ranks]


def _told(folder: Path, turn: str) -> dict[str, Measurements]:
    ranks = [(folder / f"{turn}-{rank}.json").read_bytes() for rank in range(2)]
    by_rank = [msgspec.json.decode(text, type=dict[str, Measurements]) for text in ranks]
    return {name: together([parts[name] for parts in by_rank]) for name in by_rank[0]}


def _cluster(parts: list[Measurements]) -> Cluster:
    setup = Setup(model="conv", data="conv", strategy="ddp", precision="fp32", steps=6, batch=4)
    return Cluster(
        command="smoke",
        nodes=[Node(name="sim0")],
        job=Job(ranks=2, backend="gloo"),
        run=Run(ranks=[RankState(rank=rank, node="sim0") for rank in range(2)], started_job=True),
        measurements=together([Measurements(smoke=Smoke(setup=setup)), *parts]),
    )


@pytest.mark.timeout(240)
def test_a_sound_place(verdicts: dict[str, dict[str, Verdict]], folder: Path) -> None:
    judged = verdicts["healthy"]
    assert {code: judged[code].state for code in ("TRN013", "TRN014", "TRN015")} == dict.fromkeys(
        ("TRN013", "TRN014", "TRN015"), State.OK
    )
    assert "2 files of 50 lines merged, 100 lines in one shared file" in judged["TRN014"].findings[0].what
    assert "rank 1 was killed after 4 steps, the checkpoint has 3" in judged["TRN015"].findings[0].what
    assert judged["TRN016"].state is not State.SKIPPED
    assert not (folder / "healthy").exists()


# Case, rule, state, and words of its first finding or of its reason.
SAID = [
    ("one file", "TRN014", State.FAIL, "2 of 2 result files are missing"),
    ("one file", "TRN013", State.OK, ""),
    ("unshared", "TRN013", State.FAIL, "it is no shared file system"),
    ("unshared", "TRN014", State.SKIPPED, "it is no shared file system"),
    ("unshared", "TRN015", State.SKIPPED, "it is no shared file system"),
    ("unshared", "TRN016", State.SKIPPED, "it is no shared file system"),
    ("nowhere", "TRN013", State.FAIL, "No such file or directory"),
    ("nowhere", "TRN015", State.SKIPPED, "No such file or directory"),
    ("unasked", "TRN013", State.UNKNOWN, "--checkpoint-dir DIR names another place"),
    ("large", "TRN013", State.SKIPPED, "--save-mib 1"),
    ("large", "TRN014", State.OK, ""),
    ("large", "TRN015", State.SKIPPED, "--save-mib 2"),
    ("forgetful", "TRN013", State.OK, ""),
    ("Net", "TRN013", State.OK, ""),
    ("Counting", "TRN013", State.WARN, "passes is in no state_dict, and training changes it"),
    ("Late", "TRN013", State.FAIL, "does not take the checkpoint of the trained one: Unexpected key(s)"),
    ("forgetful", "TRN015", State.FAIL, "ended with other parameters"),
    ("full", "TRN013", State.FAIL, FULL),
    ("full", "TRN015", State.FAIL, FULL),
    ("full", "TRN016", State.SKIPPED, FULL),
]


@pytest.mark.parametrize(("name", "code", "state", "words"), SAID)
def test_what_is_said(
    verdicts: dict[str, dict[str, Verdict]], name: str, code: str, state: State, words: str
) -> None:
    if name not in verdicts:
        pytest.skip("a file system of 64 KiB could not be mounted")
    verdict = verdicts[name][code]
    text = verdict.findings[0].what if verdict.findings else verdict.reason
    assert (verdict.state, words in (text or "")) == (state, True), text


GIB = 2**30


@pytest.mark.parametrize(
    ("available", "limit", "state"),
    [
        (64, None, State.OK),
        (24, None, State.WARN),
        (12, None, State.FAIL),
        (64, 12, State.FAIL),
        (64, 24, State.WARN),
    ],
)
def test_rank_0_has_what_its_control_group_leaves(available: int, limit: int | None, state: State) -> None:
    """7e9 parameters in 16 bits are 13 GiB, and some ways of saving copy them."""
    kept = Unread("absent", "no control group limits memory") if limit is None else limit * GIB
    host = Host(memory_available=available * GIB, memory_limit=kept)
    saved = ShardedSave(folder="/x", bytes=GIB, ranks=2, gather_s=0.1, write_s=1.0, shards_s=0.5, parameters=7e9)
    cluster = replace(
        _cluster([Measurements(smoke=Smoke(saves=Saves(sharded=saved)))]), nodes=[Node(name="sim0", host=host)]
    )
    assert {v.code: v.state for v in judge(cluster, RULES)}["TRN018"] is state
