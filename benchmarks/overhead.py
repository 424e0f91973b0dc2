"""What ncclcheck's measuring costs: its all_reduce beside a bare torch.distributed loop, in one job of two ranks.

    python benchmarks/overhead.py [--rounds 9]

Both are timed alike: a barrier before each iteration, the maximum over ranks, the median. They take turns within
one job, so that both see the same machine; the bare loop is run twice a round, and the ratio of the two (A/A)
shows how much of a difference is chance.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from tabulate import tabulate
from torch._C._distributed_c10d import FileStore

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ncclcheck.probes.facts import Collective, Measurements
from ncclcheck.probes.job import collectives
from ncclcheck.probes.job.context import CollectivePlan, Context, JobPlan, Row
from ncclcheck.probes.job.usage.memory import MemoryWatch

RANKS = 2
# Iterations of one turn, and turns in a round: short turns of the slow size see the same machine.
TURNS = {2**10: (150, 1), 2**20: (60, 1), 2**26: (3, 3)}
TARGETS = {2**10: (0.8, 1.25), 2**26: (0.95, 1.05)}


class Ratios(msgspec.Struct):
    """The rounds of one size: our seconds by the bare loop's, and the bare loop's by its own."""

    size: int
    ours_us: list[float]
    bare_us: list[float]
    again_us: list[float]

    def against_bare(self) -> float:
        """The median over rounds of ours / bare."""
        return statistics.median(ours / bare for ours, bare in zip(self.ours_us, self.bare_us, strict=True))

    def against_itself(self) -> float:
        """The median over rounds of bare / bare."""
        return statistics.median(again / bare for again, bare in zip(self.again_us, self.bare_us, strict=True))


def bare(size: int, iterations: int) -> float:
    """Microseconds of all_reduce as anyone would write it."""
    buffer = torch.ones(size // 4)
    seconds = []
    dist.all_reduce(buffer)
    for _ in range(iterations):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(buffer)
        seconds.append(time.perf_counter() - begin)
    slowest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(statistics.median(slowest.tolist())) * 1e6


def ours(size: int, iterations: int) -> float:
    """Microseconds of all_reduce as `bench` reports it; the same on all ranks."""
    rows: list[Collective] = []

    def emit(part: Measurements) -> None:
        rows.extend(part.collectives)

    plan = CollectivePlan(
        rows=[Row(op="all_reduce", bytes=size)],
        budget_s=60,
        least_iterations=iterations,
        most_iterations=iterations,
    )
    collectives.run(_context(plan, emit))
    times = rows[0].time_us if rows else None
    shared = torch.tensor([times.p50 if times else 0.0], dtype=torch.float64)
    dist.broadcast(shared, src=0)
    return float(shared[0])


def _context(plan: CollectivePlan, emit: Callable[[Measurements], None]) -> Context:
    return Context(
        rank=dist.get_rank(),
        local_rank=dist.get_rank(),
        world_size=RANKS,
        node="here",
        node_of=["here"] * RANKS,
        nodes=1,
        backend="gloo",
        device=torch.device("cpu"),
        plan=JobPlan(collectives=plan),
        deadline=time.monotonic() + 120,
        step=lambda _: None,
        tick=lambda: None,
        emit=emit,
        done=lambda: None,
        memory=MemoryWatch(torch.device("cpu")),
    )


def take_turns(size: int, iterations: int, rounds: int) -> Ratios:
    """All three arms in every round, each time beginning with another."""
    ratios = Ratios(size, [], [], [])
    arms = [(ours, ratios.ours_us), (bare, ratios.bare_us), (bare, ratios.again_us)]
    for number in range(rounds):
        first = number % len(arms)
        for measure, kept in arms[first:] + arms[:first]:
            kept.append(measure(size, iterations))
    return ratios


def _rank(rank: int, rounds: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store = FileStore(str(Path(folder, "store")), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    bare(2**20, 20)
    ratios = [take_turns(size, iterations, rounds * turns) for size, (iterations, turns) in TURNS.items()]
    if rank == 0:
        Path(folder, "found.json").write_bytes(msgspec.json.encode(ratios))
    dist.destroy_process_group()


def collective_ratios(rounds: int) -> list[Ratios]:
    """Run the job and hand back what its rank 0 saw."""
    with tempfile.TemporaryDirectory() as folder:
        spawn = multiprocessing.get_context("spawn")
        ranks = [spawn.Process(target=_rank, args=(rank, rounds, folder)) for rank in range(RANKS)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        return msgspec.json.decode(Path(folder, "found.json").read_bytes(), type=list[Ratios])


def collective_table(measured: list[Ratios]) -> str:
    """The ratios as a table, with the target where there is one."""
    lines = []
    for ratios in measured:
        low, high = TARGETS.get(ratios.size, (0.0, 0.0))
        inside = low <= ratios.against_bare() <= high
        lines.append(
            [
                f"{ratios.size // 1024} KiB",
                statistics.median(ratios.bare_us),
                statistics.median(ratios.ours_us),
                ratios.against_bare(),
                ratios.against_itself(),
                f"{low}-{high} {'met' if inside else 'MISSED'}" if high else "",
            ]
        )
    heads = ["all_reduce", "bare us", "ours us", "ours/bare", "bare/bare", "target"]
    return tabulate(lines, heads, floatfmt=("", ".0f", ".0f", ".3f", ".3f", ""))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="how often each arm is measured (default 9)")
    arguments = parser.parse_args()
    print(collective_table(collective_ratios(arguments.rounds)))


if __name__ == "__main__":
    main()
