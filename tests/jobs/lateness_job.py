"""One rank of a real gloo job that comes late in several ways: python -m tests.jobs.lateness_job RANK FOLDER."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from ncclcheck.probes.facts import Measurements, together
from ncclcheck.probes.job import collectives
from ncclcheck.probes.job.context import CollectivePlan, Context, JobPlan, Row, SpeedPlan
from ncclcheck.probes.job.peers import speed
from ncclcheck.probes.job.usage.memory import MemoryWatch

WORLD = 3
LATE = 2
CASES = ("healthy", "delayed", "stopped")
NODES = ["n0", "n0", "n1"]
PLAN = CollectivePlan(
    rows=[Row(op="broadcast", bytes=2**20), Row(op="all_reduce", bytes=2**12)],
    budget_s=10.0,
    least_iterations=60,
    most_iterations=60,
)


def context(rank: int, tick: Callable[[], None], emit: Callable[[Measurements], None]) -> Context:
    """Two ranks on the first node, one on the other."""
    return Context(
        rank=rank,
        local_rank=0,
        world_size=WORLD,
        node=NODES[rank],
        node_of=NODES,
        nodes=2,
        backend="gloo",
        device=torch.device("cpu"),
        plan=JobPlan(collectives=PLAN, speed=SpeedPlan(budget_s=0.2)),
        deadline=time.monotonic() + 60,
        step=lambda _: None,
        tick=tick,
        emit=emit,
        done=lambda: None,
        memory=MemoryWatch(torch.device("cpu")),
    )


def stop_and_go(pid: int, over: threading.Event) -> None:
    """Stop a process for 40 ms, again and again."""
    while not over.wait(0.04):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.04)
        os.kill(pid, signal.SIGCONT)


def measure(case: str, rank: int, pids: list[int]) -> Measurements:
    """The collectives with one of the faults at rank LATE."""
    parts: list[Measurements] = []
    tick: Callable[[], None] = lambda: time.sleep(0.02 if case == "delayed" and rank == LATE else 0)  # noqa: E731
    over = threading.Event()
    stopper = threading.Thread(target=stop_and_go, args=(pids[LATE], over))
    if case == "stopped" and rank == 0:
        stopper.start()
    collectives.run(context(rank, tick, parts.append))
    over.set()
    if stopper.ident:
        stopper.join()
    dist.barrier()
    return together(parts)


def main() -> None:
    """Join the world, measure all cases and the speeds, leave all in FOLDER/RANK.json."""
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=40))
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(WORLD)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    measured = {case: measure(case, rank, [int(pid) for pid in pids]) for case in CASES}
    speeds: list[Measurements] = []
    speed.run(context(rank, lambda: None, speeds.append))
    measured["speed"] = together(speeds)
    (folder / f"{rank}.json").write_bytes(msgspec.json.encode(measured))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
