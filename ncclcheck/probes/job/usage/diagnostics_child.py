"""Makes one communicator with NCCL's own diagnostics on, and ends: what a rank starts beside itself."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ncclcheck.probes.machine.process import die_with_parent

_LINE_BUFFERED = 1  # _IOLBF of glibc's and musl's stdio.h
_MOST = timedelta(minutes=10)  # whoever started us has a shorter limit
_REPORT_S = 2.0  # the report of RAS follows the making of the communicator


def main() -> None:
    """The backend is the first argument: gloo prints no diagnostics, and shows that all of them meet."""
    die_with_parent()
    _print_each_line_at_once()
    backend, rank, world = sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(backend, store=_store(rank, world), rank=rank, world_size=world, timeout=_MOST)
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
    if int(total.item()) != world:
        raise RuntimeError(f"the sum of {world} ones is {total.item()}")
    if backend == "nccl":
        time.sleep(_REPORT_S)
    dist.destroy_process_group()


def _store(rank: int, world: int) -> Store:
    """That of torchrun's agent. A prefix keeps our keys from those that the ranks themselves will write."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_master = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = TCPStore(host, port, world, is_master=is_master, timeout=_MOST)
    return PrefixStore("ncclcheck diagnostics", store)


def _print_each_line_at_once() -> None:
    """NCCL prints with C's stdio, which keeps what it has in a pipe back, and loses it when we are killed."""
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _LINE_BUFFERED, 0)


if __name__ == "__main__":
    main()
