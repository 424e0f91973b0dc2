"""One rank of a real gloo job that measures several plans:

python -m tests.jobs.collective_job RANK WORLD FOLDER
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from ncclcheck.probes.facts import Collective, Measurements, RankMemory, Soak, WrongResult
from ncclcheck.probes.job import collectives, operations
from ncclcheck.probes.job.context import CollectivePlan, Context, Injection, JobPlan, SoakPlan
from ncclcheck.probes.job.usage.memory import MemoryWatch
from ncclcheck.probes.job.verify.exact import bits
from tests.jobs import planted as defects

ROOT = Path(__file__).parents[2]


class Case(msgspec.Struct, kw_only=True):
    """A plan, and what is planted: a rank whose all_reduce gives a wrong result from some call on (-1: none);
    what the one-tensor form of all_gather raises; a defect of tests.jobs.planted in rank 1.
    """

    name: str
    plan: CollectivePlan
    corrupt_rank: int = -1
    corrupt_call: int = 0
    gather_error: str = ""
    defect: str = ""
    soak: SoakPlan | None = None
    injected: list[Injection] = []


class Outcome(msgspec.Struct, kw_only=True):
    """What one rank handed over."""

    name: str
    rows: list[Collective] = []
    wrong: list[WrongResult] = []
    soaks: list[Soak] = []
    memory: RankMemory | None = None
    steps: list[str] = []
    ticks: int = 0
    error: str = ""
    seconds: float = 0.0


def measure(case: Case, rank: int, world: int) -> Outcome:
    """Run one plan as worker.py would."""
    outcome = Outcome(name=case.name)

    def emit(part: Measurements) -> None:
        outcome.rows = [*outcome.rows, *part.collectives]
        outcome.wrong = [*outcome.wrong, *part.wrong]
        outcome.soaks = [*outcome.soaks, *([part.soak] if part.soak else [])]

    def tick() -> None:
        outcome.ticks += 1

    begin = time.monotonic()
    context = Context(
        rank=rank,
        local_rank=0,
        world_size=world,
        node=f"sim{rank}",
        node_of=[f"sim{number}" for number in range(world)],
        nodes=world,
        backend="gloo",
        device=torch.device("cpu"),
        plan=JobPlan(collectives=case.plan, soak=case.soak, injected=case.injected),
        deadline=begin + 60,
        step=outcome.steps.append,
        tick=tick,
        emit=emit,
        done=lambda: None,
        memory=MemoryWatch(torch.device("cpu")),
    )
    collectives.first_collective(context)
    try:
        collectives.run(context)
    except RuntimeError as error:
        outcome.error = str(error)
    outcome.seconds = time.monotonic() - begin
    outcome.memory = context.memory.report(rank, context.node)
    return outcome


def corrupting(call: Callable[..., Any], when: int) -> Callable[..., Any]:
    """all_reduce with bit 3 of element 5 flipped, from call number `when` with that many elements on."""
    calls = 0

    def all_reduce(tensor: torch.Tensor, *args: Any, **named: Any) -> Any:
        nonlocal calls
        result = call(tensor, *args, **named)
        calls += tensor.numel() >= 1000
        if tensor.numel() >= 1000 and calls >= when:
            bits(tensor)[5] ^= 8
        return result

    return all_reduce


def raising(message: str) -> Callable[..., Any]:
    """A function that this torch does not have."""

    def call(*_args: Any, **_named: Any) -> None:
        raise RuntimeError(message)

    return call


@contextlib.contextmanager
def planted(case: Case, rank: int) -> Iterator[None]:
    """The defects of a case, for as long as it runs."""
    all_reduce, gather = dist.all_reduce, operations._all_gather_single
    if case.corrupt_rank == rank:
        dist.all_reduce = corrupting(all_reduce, case.corrupt_call)
    if case.gather_error:
        operations._all_gather_single = raising(case.gather_error)
    with defects.planted(case.defect) if case.defect and rank == 1 else contextlib.nullcontext():
        yield
    dist.all_reduce, operations._all_gather_single = all_reduce, gather


def outcomes_of(cases: list[Case], world: int) -> list[dict[str, Outcome]]:
    """What each rank of a job over all cases handed over, by case."""
    with TemporaryDirectory() as folder:
        Path(folder, "cases.json").write_bytes(msgspec.json.encode(cases))
        command = [sys.executable, "-m", "tests.jobs.collective_job"]
        ranks = [
            subprocess.Popen([*command, str(rank), str(world), folder], stderr=subprocess.PIPE, cwd=ROOT)
            for rank in range(world)
        ]
        try:
            errors = [rank.communicate(timeout=100)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0] * world, b"\n".join(errors).decode()
        texts = [Path(folder, f"{rank}.json").read_bytes() for rank in range(world)]
    return [{o.name: o for o in msgspec.json.decode(text, type=list[Outcome])} for text in texts]


def main() -> None:
    """Join the world, measure all cases, leave the outcomes in FOLDER/RANK.json."""
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=40))
    outcomes = []
    for case in msgspec.json.decode((folder / "cases.json").read_bytes(), type=list[Case]):
        with planted(case, rank):
            outcomes.append(measure(case, rank, world))
    (folder / f"{rank}.json").write_bytes(msgspec.json.encode(outcomes))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
