"""`ncclcheck smoke` through the real command."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclcheck.reports.judgement.findings import State
from tests.conftest import Command, environment

WRONG = [
    (["--steps", "0"], "--steps"),
    (["--model", "nowhere"], "allowed are transformer, conv, MODULE:FACTORY and FILE.py:FACTORY"),
    (["--model", "nosuch:thing"], "--model nosuch:thing: there is no module nosuch"),
    (["--data", "nosuch.py:thing"], "--data nosuch.py:thing: there is no file nosuch.py"),
    (["--model-params", "abc"], "--model-params: 'abc' is not understood; allowed are 1 to 1e14 as 70e9 or 70B"),
    (["--settings", "bad.json"], "--settings: bad.json: "),
    (["--inject", "corrupt=1"], "this command cannot show it"),
    (["--strategy", "horovod"], "--strategy"),
]


@pytest.mark.parametrize(
    ("given", "says"), WRONG, ids=lambda words: " ".join(words) if isinstance(words, list) else ""
)
def test_wrong_inputs_end_with_2(ncclcheck: Command, tmp_path: Path, given: list[str], says: str) -> None:
    (tmp_path / "bad.json").write_text("{")
    ran = ncclcheck("smoke", *given)
    assert (ran.code, says in ran.err, "Traceback" in ran.err) == (2, True, False), ran.err


def test_a_dataset_that_is_not_there_ends_data_with_2(ncclcheck: Command) -> None:
    ran = ncclcheck("data", "nosuch.py:make")
    assert (ran.code, ran.err.strip()) == (2, "ncclcheck: FACTORY nosuch.py:make: there is no file nosuch.py")


@pytest.mark.timeout(200)
def test_a_healthy_run_is_killed_and_resumed(ncclcheck: Command, tmp_path: Path) -> None:
    ran = ncclcheck(
        "smoke", "--nodes", "2", "--nproc-per-node", "1", "--model", "conv", "--steps", "4", "--save-mib", "4",
        "-o", "json", seconds=190,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    state = {verdict.code: verdict.state for verdict in ran.document.verdicts}
    assert State.FAIL not in state.values()
    assert state["TRN015"] is State.OK
    assert [stage.name for stage in ran.document.stages] == ["facts", "smoke", "resume"]
    assert [*tmp_path.iterdir()] == []


MINE = """
import pathlib, torch

def data():
    rows = int(pathlib.Path("rows.txt").read_text())
    return torch.utils.data.TensorDataset(torch.ones(rows, 4), torch.ones(rows, 2))

def model():
    return torch.nn.Linear(4, 2)

def broken():
    raise ValueError("no weights here")

def killed():
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("model", "code", "fails", "causes"),
    [
        pytest.param("model", 0, "", None, marks=pytest.mark.nightly),
        ("broken", 1, "ValueError: no weights here", []),
        ("killed", 1, "SIGKILL", []),
    ],
)
def test_the_users_own_runs_where_it_was_typed(
    ncclcheck: Command, tmp_path: Path, model: str, code: int, fails: str, causes: list[str] | None
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "rows.txt").write_text("64")
    ran = ncclcheck(
        "smoke", "--model", f"mine:{model}", "--data", "mine:data", "--steps", "4", "--no-kill", "-o", "json",
        seconds=140,
    )  # fmt: skip
    state = {verdict.code: verdict.state for verdict in ran.document.verdicts}
    texts = [
        finding.what
        for verdict in ran.document.verdicts
        if verdict.code in ("RUN003", "TRN026")
        for finding in verdict.findings
    ]
    assert (ran.code, state["TRN003"]) == (code, State.SKIPPED if code else State.OK)
    assert fails in " ".join(texts)
    story = ran.document.diagnosis
    assert (None if story is None else [cause.code for cause in story.causes]) == causes


@pytest.mark.timeout(150)
def test_ctrl_c_leaves_no_file(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "ncclcheck", "smoke", "--nodes", "2", "--nproc-per-node", "1"]
    with subprocess.Popen(argv, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) as run:
        try:
            until = time.monotonic() + 100
            while not any(tmp_path.glob("ncclcheck-smoke-*/checkpoint.pt")) and time.monotonic() < until:
                time.sleep(0.1)
            run.send_signal(signal.SIGINT)
            assert run.wait(timeout=40) == 130
        finally:
            run.kill()
    assert [*tmp_path.iterdir()] == []
