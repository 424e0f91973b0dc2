"""One rank of a real gloo job that times its training steps:

python -m tests.jobs.steps_job RANK WORLD PORT FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from ncclcheck.probes.facts import JobMemory, Measurements, together
from ncclcheck.probes.job.context import Context, Injection, JobPlan, TrainingPlan
from ncclcheck.probes.job.usage.memory import MemoryWatch
from ncclcheck.probes.training import loop
from ncclcheck.probes.training.times import attribution, side


class Case(msgspec.Struct, kw_only=True):
    """What is trained, on which nodes, what is injected; gpus: memory is watched as if each rank had a GPU."""

    plan: TrainingPlan
    node_of: list[str]
    injected: list[Injection] = []
    side: bool = False
    gpus: bool = False


class Outcome(msgspec.Struct, kw_only=True):
    """What one rank handed over."""

    part: Measurements
    steps: list[str] = []


def train(case: Case, rank: int, watch: MemoryWatch) -> Outcome:
    """As worker.py would run the parts."""
    parts, announced = list[Measurements](), list[str]()
    context = Context(
        rank=rank,
        local_rank=case.node_of[:rank].count(case.node_of[rank]),
        world_size=len(case.node_of),
        node=case.node_of[rank],
        node_of=case.node_of,
        nodes=len(set(case.node_of)),
        backend="gloo",
        device=torch.device("cpu"),
        plan=JobPlan(training=case.plan, injected=case.injected),
        deadline=time.monotonic() + 100,
        step=announced.append,
        tick=lambda: None,
        emit=parts.append,
        memory=watch,
        done=lambda: None,
    )
    setting = loop.make(context)
    attribution.run(setting)
    if case.side:
        side.run(setting)
    parts.append(Measurements(memory=JobMemory(ranks=[watch.report(rank, context.node)])))
    return Outcome(part=together(parts), steps=announced)


def main() -> None:
    """Join the world, train, leave the outcome in FOLDER/RANK.json."""
    rank, world, port, folder = *map(int, sys.argv[1:4]), Path(sys.argv[4])
    case = msgspec.json.decode((folder / "case.json").read_bytes(), type=Case)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    watch = MemoryWatch(torch.device("cuda", rank) if case.gpus else torch.device("cpu"))
    watch.mark("before_init")
    every: Any = dist
    store = every.TCPStore("127.0.0.1", port, world, rank == 0, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=80))
    watch.mark("after_init")
    (folder / f"{rank}.json").write_bytes(msgspec.json.encode(train(case, rank, watch)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
