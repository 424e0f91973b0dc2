"""A gloo job of three whose environment tells no rank, rank 1 at fault: `unranked_job.py HOW FAULT FOLDER PORT`.

HOW: spawn (torch.multiprocessing.spawn), spawn+env (its processes set RANK themselves), fork (a loop that starts
processes), pool (processes that are there before they have a rank, and get them as 2, 0, 1, as Ray's do).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

HOW, FAULT, FOLDER, PORT = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]
_RANKS, _STEPS = 3, 40
_OF_A_POOL = (2, 0, 1)


def work(rank: int) -> None:
    """Sound steps, then the fault."""
    torch.set_num_threads(1)
    limit, where = timedelta(seconds=600), f"tcp://127.0.0.1:{PORT}"
    if HOW == "spawn+env":
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(_RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT)
        dist.init_process_group("gloo", timeout=limit)
    else:
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=_RANKS, timeout=limit)
    step = 0
    while True:
        step += 1
        if step == _STEPS:
            (FOLDER / f"ready{rank}").write_text(str(os.getpid()))
            if rank == 1 and FAULT == "sleep":
                time.sleep(1000)
            if FAULT == "SIGKILL":  # in a collective gloo sees the end of a peer, and raises
                if rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                dist.distributed_c10d._get_default_store().wait(["what rank 1 would say"], limit)
        time.sleep(0.01)
        dist.all_reduce(torch.ones(25_000))


def _wait_for_a_rank(place: Path) -> None:
    while not place.exists():
        time.sleep(0.05)
    work(int(place.read_text()))


def main() -> None:
    """Start them, and wait."""
    if HOW.startswith("spawn") and FAULT != "SIGKILL":  # mp.spawn would end the others
        spawn(work, nprocs=_RANKS)  # type: ignore[no-untyped-call]
        return
    way = get_context("fork") if HOW == "fork" else get_context("spawn")
    places = [FOLDER / f"rank of {at}" for at in range(_RANKS)]
    started = [
        way.Process(target=_wait_for_a_rank, args=(place,))
        if HOW == "pool"
        else way.Process(target=work, args=(at,))
        for at, place in enumerate(places)
    ]
    for process in started:
        process.start()
    for place, rank in zip(places, _OF_A_POOL, strict=True):
        place.with_suffix(".new").write_text(str(rank))
        place.with_suffix(".new").rename(place)
    time.sleep(1000)


if __name__ == "__main__":
    main()
