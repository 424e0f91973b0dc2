"""What a user's module raises that starts processes of its own, and what is then said of it: torch's own words."""

from __future__ import annotations

import subprocess
import sys

from ncclcheck.probes.facts import JobEnd, RankState, Run
from ncclcheck.reports.subjects.failures import lost
from tests.conftest import ROOT

_RANK = """import importlib, sys
import torch.multiprocessing as mp

def rank(number, module):
    importlib.import_module(module).model()

if __name__ == "__main__":
    try:
        mp.spawn(rank, args=(sys.argv[1],), nprocs=1)
    except Exception as error:
        print(type(error).__name__ + ": " + str(error))
"""


def _ended(module: str, folder: str) -> tuple[RankState, Run]:
    """How a rank of spawn ended that has this module's model, and what its node's log says."""
    with open(f"{folder}/ranks.py", "w", encoding="utf-8") as file:
        file.write(_RANK)
    done = subprocess.run(
        [sys.executable, f"{folder}/ranks.py", module], cwd=folder, env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    raised = done.stdout.strip().splitlines()[-1] if "Raised" not in done.stdout else done.stdout.strip()
    state = RankState(rank=0, node="a", pid=1, proc_state="gone", exit=1, error=raised)
    return state, Run(started_job=True, ends=[JobEnd(node="a", exit=1, detail=done.stderr)])


def _said(module: str, folder: str) -> tuple[str, str]:
    meaning = lost.meaning_of(*_ended(module, folder))
    assert meaning is not None
    return meaning.means, meaning.fix[0].commands[0]


def test_a_module_without_the_main_guard(tmp_path: object) -> None:
    means, command = _said("tests.samples.unguarded_spawn", str(tmp_path))
    assert "starts processes while it is imported" in means
    assert "if __name__ == '__main__'" in command


def test_cuda_that_was_used_before_a_fork(tmp_path: object) -> None:
    means, command = _said("tests.samples.forked_cuda", str(tmp_path))
    assert "does not survive a fork" in means
    assert "spawn" in command
