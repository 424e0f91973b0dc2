"""One rank of a real gloo job that measures pairs of nodes: python -m tests.jobs.pairs_job RANK PORT FOLDER."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from ncclcheck.probes.facts import PairTime
from ncclcheck.probes.job.context import CollectivePlan, Context, JobPlan, PairPlan
from ncclcheck.probes.job.peers import exchange, pairs
from ncclcheck.probes.job.usage.memory import MemoryWatch

WORLD = 4


class Case(msgspec.Struct, kw_only=True):
    """A plan, the node of each rank, the rounds that are announced, and what one rank does wrong.

    late_rank: sleeps before it comes to its exchange; mute_rank: sleeps instead of sending data.
    """

    name: str
    plan: PairPlan
    rounds: list[list[tuple[str, str]]]
    node_of: tuple[str, ...] = ("n0", "n1", "n2", "n3")
    late_rank: int = -1
    mute_rank: int = -1
    sleep_s: float = 0.0


class Outcome(msgspec.Struct, kw_only=True):
    """What one rank handed over, and whether the world still works."""

    name: str
    pairs: list[PairTime] = []
    steps: list[str] = []
    keys: int = 0
    sum: float = 0.0


@contextlib.contextmanager
def planted(case: Case, rank: int) -> Iterator[None]:
    """The fault of this rank, for as long as the case runs."""
    following, serve = pairs._PairMember._next, exchange.Exchange._serve

    def late(member: pairs._PairMember, number: int) -> pairs.PairOrder | None:
        order = following(member, number)
        time.sleep(0 if number else case.sleep_s)
        return order

    def mute(pair: exchange.Exchange) -> None:
        time.sleep(case.sleep_s)
        serve(pair)

    if rank == case.late_rank:
        setattr(pairs._PairMember, "_next", late)  # noqa: B010
    if rank == case.mute_rank:
        setattr(exchange.Exchange, "_serve", mute)  # noqa: B010
    yield
    setattr(pairs._PairMember, "_next", following)  # noqa: B010
    setattr(exchange.Exchange, "_serve", serve)  # noqa: B010


def measure(case: Case, rank: int) -> Outcome:
    """Run the rounds as worker.py would, then an all_reduce over the world."""
    outcome, rounds = Outcome(name=case.name), iter(case.rounds)
    context = Context(
        rank=rank,
        local_rank=0,
        world_size=WORLD,
        node=case.node_of[rank],
        node_of=case.node_of,
        nodes=len(set(case.node_of)),
        backend="gloo",
        device=torch.device("cpu"),
        plan=JobPlan(collectives=CollectivePlan(rows=[]), pairs=case.plan),
        deadline=time.monotonic() + 40,
        step=outcome.steps.append,
        tick=lambda: None,
        emit=lambda part: outcome.pairs.extend(part.pairs),
        done=lambda: None,
        memory=MemoryWatch(torch.device("cpu")),
    )
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    outcome.keys = -store.num_keys()
    dist.barrier()  # else others would count what the first have written already
    pairs.run(context, lambda _done: next(rounds, []))
    dist.barrier()
    outcome.keys += store.num_keys()
    total = torch.ones(1)
    dist.all_reduce(total)
    outcome.sum = float(total)
    return outcome


def main() -> None:
    """Join the world, measure all cases, leave the outcomes in FOLDER/RANK.json."""
    rank, port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    every: Any = dist
    store = every.TCPStore("127.0.0.1", port, WORLD, rank == 0, timeout=timedelta(seconds=30))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=40))
    outcomes = []
    for case in msgspec.json.decode((folder / "cases.json").read_bytes(), type=list[Case]):
        with planted(case, rank):
            outcomes.append(measure(case, rank))
    (folder / f"{rank}.json").write_bytes(msgspec.json.encode(outcomes))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
