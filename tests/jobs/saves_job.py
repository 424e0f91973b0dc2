"""One rank of a real gloo job that saves, dies and goes on:

python -m tests.jobs.saves_job RANK WORLD FOLDER TURN
"""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from ncclcheck.probes.facts import Measurements, together
from ncclcheck.probes.job.context import Injection, TrainingPlan
from ncclcheck.probes.training import loop
from ncclcheck.probes.training.saves import checkpoint, merge, resume, sharded
from tests.jobs import training_job

Turn = Literal["first", "second"]


class Case(msgspec.Struct, kw_only=True):
    """A run, and what is wrong with it.

    unshared: each rank has a folder of its own; forgetful: the optimizer's state is not saved; dies: a rank really
    gets SIGKILL, so that this is the last case.
    """

    name: str
    plan: TrainingPlan
    injected: list[Injection] = []
    wrong: Literal["", "unshared", "forgetful"] = ""
    dies: bool = False


class _Died(Exception):
    """A death that the next case outlives."""


class _Unkillable:
    """In the place of the module os."""

    def getpid(self) -> int:
        return 0

    def kill(self, _pid: int, _signal: int) -> None:
        raise _Died

    def _exit(self, _status: int) -> None:
        raise _Died


def first(case: Case, rank: int, world: int, measured: dict[str, Measurements], leave: Any) -> None:
    """All parts that save; then a rank dies."""
    parts: list[Measurements] = []
    if case.wrong == "unshared":
        case.plan = msgspec.structs.replace(case.plan, run_folder=f"{case.plan.run_folder}-{rank}")
    given = training_job.Case(name=case.name, plan=case.plan, injected=case.injected)
    setting = loop.make(training_job.context(given, rank, world, parts, []))
    for part in (checkpoint, merge, sharded):
        part.run(setting)
    die = resume.interrupted(setting)
    measured[case.name] = together(parts)
    if case.dies and die:
        leave()
        die()
    elif die:
        _die_in_vain(die, forgetful=case.wrong == "forgetful")
        measured[case.name] = together(parts)


def _die_in_vain(die: Any, *, forgetful: bool) -> None:
    with pytest.MonkeyPatch.context() as patch, suppress(_Died):
        patch.setattr(resume, "os", _Unkillable())
        if forgetful:
            patch.setattr(resume, "written", _forgetful)
        die()


def _forgetful(path: Path, state: Any) -> tuple[float, str]:
    if "optimizer" in state:
        state = {**state, "optimizer": {**state["optimizer"], "state": {}}}
    return checkpoint.written(path, state)


def second(case: Case, rank: int, world: int, measured: dict[str, Measurements]) -> None:
    """New processes go on."""
    parts: list[Measurements] = []
    plan = msgspec.structs.replace(case.plan, resume=True)
    given = training_job.Case(name=case.name, plan=plan, injected=case.injected)
    resume.resumed(loop.make(training_job.context(given, rank, world, parts, [])))
    measured[case.name] = together(parts)


def main() -> None:
    """Join the world, and leave what was told in FOLDER/TURN-RANK.json."""
    rank, world, folder, turn = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    store = FileStore(str(folder / f"store-{turn}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    cases = msgspec.json.decode((folder / "cases.json").read_bytes(), type=list[Case])
    measured: dict[str, Measurements] = {}

    def leave() -> None:
        (folder / f"{turn}-{rank}.json").write_bytes(msgspec.json.encode(measured))

    for case in cases:
        if turn == "first":
            first(case, rank, world, measured, leave)
        elif case.dies or case.wrong == "forgetful":
            second(case, rank, world, measured)
    leave()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
