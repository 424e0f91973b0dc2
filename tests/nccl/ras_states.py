"""RAS's answers of every state that can be made, as they are kept in tests/data/ras.

python -m tests.nccl.ras_states FOLDER [VERSION ...]      text; JSON as well of those that know it
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
WITH_JSON = ("2.28.9",)  # built from its sources, see from_source.py
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
            forms = ("txt", "json") if version in WITH_JSON else ("txt",)
            kept = [folder / f"{version}-{state.name}.{form}" for form in forms]
            if all(path.exists() for path in kept):
                continue
            with Lab(hosts=2, mgmt=False) as lab:
                answers = _asked(lab, state, version, forms)
            for path, answer in zip(kept, answers, strict=True):
                path.write_text(answer)
                print(f"{path.name}: {len(answer)} characters", flush=True)


def _asked(lab: Lab, state: State, version: str, forms: Sequence[str]) -> list[str]:
    def ask(job: Job) -> None:
        state.before(job)
        time.sleep(_AFTER_S)
        for form in forms:
            answer = job.ask("h1", seconds=20, json=form == "json")
            if answer.refused:
                print(f"{version} {state.name} {form}: {answer.refused}", flush=True)

    kernel = "done" if version in WITH_JSON else state.kernel  # ring.c walks what wheels have
    job = Job(lab, state.ranks, version=version, kernel=kernel)
    return [answer.text for answer in job.run(seconds=0, during=ask).ras]


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2:] or VERSIONS)
