"""The sbatch examples on a real Slurm: a bad node is left out, or the training does not start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, environment
from tests.lab import PYTHON, Lab, Slurm, faults
from tests.lab.tools import until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]
_SECONDS = 180
_TORCHRUN = '#!/bin/sh\necho "$(hostname) $SLURM_STEP_NUM_NODES $@" >>{folder}/trained\n'
_OURS = '#!/bin/sh\nexec {python} -m ncclcheck "$@"\n'


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Four hosts, and a network of Slurm's own beside theirs."""
    with Lab(4) as lab:
        yield lab


def test_the_training_starts_on_the_nodes_that_are_fit(lab: Lab) -> None:
    Slurm(lab)
    with faults.clock(lab["h2"], 30):
        done = _submit(
            lab, "spare-nodes.sbatch", ("--nodes=6", "--nodes=4"), ("--need 4", "--need 3"), ("standard", "quick")
        )
    assert sorted(line.split()[:2] for line in done) == [["h1", "3"], ["h3", "3"], ["h4", "3"]], _log(lab)
    assert all("--nnodes 3" in line and "--rdzv-endpoint h1:29500" in line for line in done)
    (excluded,) = lab.folder.glob("bad-*.txt")
    assert excluded.read_text() == "h2\n"


def test_no_training_where_all_nodes_are_wanted_and_one_is_bad(lab: Lab) -> None:
    Slurm(lab)
    with faults.clock(lab["h2"], 30):
        assert _submit(lab, "preflight.sbatch") == []
    assert "HST009" in _log(lab)


def _submit(lab: Lab, name: str, *changes: tuple[str, str]) -> list[str]:
    """Send the example off, for hosts without GPUs; where torchrun was started, and with what."""
    text = (ROOT / "examples" / name).read_text()
    for before, after in (("#SBATCH --gpus-per-node=8\n", ""), ("24:00:00", "0:10:00"), *changes):
        assert before in text
        text = text.replace(before, after)
    programs = {
        "job": text,
        "torchrun": _TORCHRUN.format(folder=lab.folder),
        "ncclcheck": _OURS.format(python=f'"{PYTHON[0]}"'),
    }
    for program, content in programs.items():
        (lab.folder / program).write_text(content)
        (lab.folder / program).chmod(0o755)
    env = environment(PATH=f"{lab.folder}:{os.environ['PATH']}")
    argv = ["sbatch", "--parsable", f"--output={lab.folder}/log", str(lab.folder / "job")]
    sent = lab["h1"].run(argv, env=env, cwd=str(lab.folder))
    assert sent.returncode == 0, sent.stderr
    job = ["squeue", "-h", "-t", "all", "-j", sent.stdout.strip(), "-o", "%T"]
    over = ("COMPLETED", "COMPLETING", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
    until("the job is over", lambda: lab["h1"].check(job).strip() in over, seconds=_SECONDS)
    trained = Path(lab.folder, "trained")
    return trained.read_text().splitlines() if trained.exists() else []


def _log(lab: Lab) -> str:
    return (lab.folder / "log").read_text()
