"""A small gloo job that hangs on demand: `hang_job.py FAULT FOLDER`; the fault is one of rank 1."""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

FAULT, FOLDER = sys.argv[1], Path(sys.argv[2])
RANK = int(os.environ["RANK"])
_SOUND_STEPS = 40


def _spin() -> None:
    while True:
        pass


def _poll() -> None:
    while True:
        time.sleep(0.05)


def _save() -> None:
    with (FOLDER / "checkpoint").open("wb", buffering=0) as file:
        while True:
            file.seek(0)
            file.write(bytes(2**20))
            time.sleep(0.05)


def _read_pipe() -> None:
    os.read(os.open(FOLDER / "pipe", os.O_RDWR), 1)


def _child_waits() -> None:
    child = os.fork()
    if child == 0:
        _read_pipe()
    os.waitpid(child, 0)


def _lock() -> None:
    with (FOLDER / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def _other_collective() -> None:
    dist.broadcast(torch.ones(25_000), 0)


_ALONE: dict[str, Callable[[], object]] = {
    "sleep": lambda: time.sleep(1000),
    "poll": _poll,
    "busy": _spin,
    "gil": lambda: ctypes.PyDLL(None).sleep(1000),
    "open pipe": (FOLDER / "pipe").read_text,
    "read pipe": _read_pipe,
    "worker waits": _child_waits,
    "lock": _lock,
    "saves": _save,
    "collective": _other_collective,
    "exits": partial(os._exit, 0),
}


def main() -> None:
    """Sound steps, then the fault."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    gradient, step = torch.ones(25_000), 0
    while True:
        step += 1
        if step == _SOUND_STEPS:
            (FOLDER / f"ready{RANK}").touch()
            if RANK == 1 and FAULT in _ALONE:
                _ALONE[FAULT]()
            if RANK == 1 and FAULT == "unequal batches":
                break
            if FAULT in ("exits", "SIGKILL"):  # in a collective gloo sees the end of a peer, and raises
                store = dist.distributed_c10d._get_default_store()
                store.wait(["what rank 1 would say"], timedelta(seconds=600))
            if FAULT == "receive":
                dist.recv(gradient, (RANK + 1) % dist.get_world_size())
            if FAULT == "all compute":
                _spin()
        time.sleep(1.0 if FAULT == "slow" and step > _SOUND_STEPS else 0.01)
        if FAULT == "straggler" and RANK == 1 and step > _SOUND_STEPS:
            time.sleep(1.0)
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    dist.barrier()


if __name__ == "__main__":
    main()
