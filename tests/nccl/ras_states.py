"""RAS's answers of every state that can be made, as they are kept in tests/data/ras.

python -m tests.nccl.ras_states FOLDER [VERSION ...]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab import Lab
from tests.nccl.case import four, kill_second, last, marked, stop_second
from tests.nccl.job import Job, Rank

VERSIONS = ("2.26.5", "2.27.7")  # RAS came with 2.24; nothing of 2.23 can be asked
OTHERS = ("2.24.3", "2.25.1", "2.26.2", "2.27.3", "2.27.5")  # read by what `hang` reads them with
_PATIENT = "all_reduce:100000 sync:30 sleep:30"
_AFTER_S = 3.0  # RAS hears of a lost connection at once, of a silent peer within seconds


@dataclass(frozen=True)
class State:
    """A state of a job of two hosts with two ranks each, and how it is made."""

    name: str
    done: str
    ranks: Sequence[Rank]
    before: Callable[[Job], None]
    kernel: str = "run"


def _started(job: Job) -> None:
    for place in range(len(job.ranks)):
        job.until(f"r{place}")


def _nothing(_: Job) -> None:
    """The job comes to this state by its own plan."""


STATES = (
    State("alive", "all have made a sum", marked(four(), "sleep:30"), _started),
    State("killed", "rank 3 got SIGKILL, the others sum", marked(four(), "sleep:1 " + _PATIENT), kill_second),
    State("stopped", "rank 3 got SIGSTOP, the others sum", marked(four(), "sleep:1 " + _PATIENT), stop_second),
    State("skipped", "rank 3 leaves out a sum of the others",
          last(marked(four(), _PATIENT), "init all_reduce sync:20 mark:r3 sleep:30"), _started),
    State("other", "rank 3 calls all_gather, the others all_reduce",
          last(marked(four(), _PATIENT), "init all_reduce sync:20 mark:r3 all_gather:100000 sync:30 sleep:30"),
          _started, kernel="done"),
    State("aborted", "rank 3 has aborted its communicator",
          last(marked(four(), "sleep:30"), "init all_reduce sync:20 mark:r3 abort sleep:30"), _started),
    State("starting", "rank 3 was never started",
          [*four("init sleep:30")[:3], Rank("h2", 1, absent=True)], _nothing),
)  # fmt: skip


def make(folder: Path, versions: Sequence[str]) -> None:
    """Ask RAS on h1 in each state, and keep its words."""
    folder.mkdir(parents=True, exist_ok=True)
    for version in versions:
        for state in STATES:
            kept = folder / f"{version}-{state.name}.txt"
            if kept.exists():
                continue
            with Lab(hosts=2, mgmt=False) as lab:
                answer = _asked(lab, state, version)
            kept.write_text(answer)
            print(f"{version} {state.name}: {len(answer)} characters", flush=True)


def _asked(lab: Lab, state: State, version: str) -> str:
    def ask(job: Job) -> None:
        state.before(job)
        time.sleep(_AFTER_S)
        answer = job.ask("h1", seconds=20)
        if answer.refused:
            print(f"{version} {state.name}: {answer.refused}", flush=True)

    job = Job(lab, state.ranks, version=version, kernel=state.kernel)
    return job.run(seconds=0, during=ask).ras[0].text


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2:] or VERSIONS)
