"""A rank of a gloo job that measures groups without a world: python -m tests.jobs.groups_job RANK PORT FOLDER."""

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

from ncclcheck.probes.facts import GroupTime
from ncclcheck.probes.job.context import Context, GroupPlan, JobPlan
from ncclcheck.probes.job.peers import groups
from ncclcheck.probes.job.usage.memory import MemoryWatch

WORLD = 4
ROUNDS = [[["n0", "n1"], ["n2", "n3"]], [["n3", "n1", "n2"]], [["n0", "n1", "n2", "n3"]]]
LATE = 3  # sleeps through its second group


def main() -> None:
    """Measure the rounds; what was emitted is left in FOLDER/RANK.json."""
    rank, port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    every: Any = dist
    store = every.TCPStore("127.0.0.1", port, WORLD, rank == 0, timeout=timedelta(seconds=60))
    times: list[GroupTime] = []
    rounds, obey = iter(ROUNDS), groups._GroupMember.obey

    def late(member: groups._GroupMember, order: groups.GroupOrder) -> None:
        time.sleep(9.0 if rank == LATE and order.round == 1 else 0)
        obey(member, order)

    setattr(groups._GroupMember, "obey", late)  # noqa: B010
    context = Context(
        rank=rank,
        local_rank=0,
        world_size=WORLD,
        node=f"n{rank}",
        node_of=[f"n{number}" for number in range(WORLD)],
        nodes=WORLD,
        backend="gloo",
        device=torch.device("cpu"),
        plan=JobPlan(apart=True, groups=GroupPlan(limit_s=6.0, bytes_a_rank=2**16)),
        deadline=time.monotonic() + 90,
        step=lambda _: None,
        tick=lambda: None,
        emit=lambda part: times.extend(part.groups),
        done=lambda: None,
        memory=MemoryWatch(torch.device("cpu")),
        store=store,
    )
    groups.run(context, lambda _done: next(rounds, []))
    (folder / f"{rank}.json").write_bytes(msgspec.json.encode(times))
    time.sleep(1.0 if rank == 0 else 0)  # the store lives here
    os._exit(0)  # what gloo has left of a connection that failed ends the process with SIGABRT


if __name__ == "__main__":
    main()
