"""A small job of torch that gets into trouble: `torchrun trouble.py KIND RANK`; RANK is who causes it.

Nothing of it is imitated: what is printed and dumped is what torch and NCCL say of it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

KIND, CULPRIT = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ["RANK"])
MINE = RANK == CULPRIT
TIMEOUT_S = float(os.environ.get("TROUBLE_TIMEOUT_S", "8"))
LONG_S = max(60.0, 2 * TIMEOUT_S)  # the watchdogs of the others end the job before
FAILS = {  # what the culprit's CUDA returns from now on, as after an Xid
    "illegal-address": "cudaEventQuery@0=700,cudaStreamSynchronize@0=700,cudaMemcpyAsync@0=700",
    "ecc": "cudaEventQuery@0=214,cudaStreamSynchronize@0=214,cudaMemcpyAsync@0=214",
    "nvlink": "cudaEventQuery@0=220,cudaStreamSynchronize@0=220,cudaMemcpyAsync@0=220",
    "device-assert": "cudaEventQuery@0=710,cudaStreamSynchronize@0=710,cudaMemcpyAsync@0=710",
    "launch-failure": "cudaEventQuery@0=719,cudaStreamSynchronize@0=719,cudaMemcpyAsync@0=719",
}


def step(size: int = 4096, group: dist.ProcessGroup | None = None) -> None:
    """One all-reduce whose result is looked at."""
    data = torch.ones(size, device="cuda")
    dist.all_reduce(data, group=group)
    torch.cuda.synchronize()


def load_batch() -> None:
    """A loader that waits for its storage."""
    time.sleep(LONG_S)


def trouble() -> None:
    """What goes wrong."""
    if KIND in TOGETHER:
        TOGETHER[KIND]()
        return
    if KIND in FAILS and MINE:
        os.environ["FAKECUDA_FAIL"] = FAILS[KIND]
    elif MINE:
        alone()
    step()


def skipped() -> None:
    """The culprit goes on to the barrier."""
    if not MINE:
        step()


def other_operation() -> None:
    """A broadcast where the others reduce."""
    data = torch.ones(4096, device="cuda")
    if MINE:
        dist.broadcast(data, CULPRIT)
    else:
        dist.all_reduce(data)
    torch.cuda.synchronize()


def other_size() -> None:
    """Twice as much."""
    step(8192 if MINE else 4096)


def subgroup() -> None:
    """Away from a group that has all but one."""
    world = dist.get_world_size()
    outside = (CULPRIT + 1) % world
    group = dist.new_group([rank for rank in range(world) if rank != outside])
    if MINE:
        load_batch()
    if outside != RANK:
        step(group=group)


def no_receive() -> None:
    """A send that nobody takes."""
    sender = (CULPRIT + 1) % dist.get_world_size()
    if sender == RANK:
        dist.send(torch.ones(2**22, device="cuda"), CULPRIT)
        torch.cuda.synchronize()
    elif MINE:
        load_batch()


TOGETHER = {
    "skipped": skipped,
    "other-operation": other_operation,
    "other-size": other_size,
    "subgroup": subgroup,
    "no-receive": no_receive,
}


def alone() -> None:
    """What the culprit does where the others only wait."""
    if KIND == "away":
        load_batch()
    elif KIND == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif KIND == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif KIND == "exception":
        raise ValueError("no such column: text_field")
    elif KIND == "out-of-memory":
        kept = [torch.empty(2**30, dtype=torch.uint8, device="cuda") for _ in range(int(LONG_S))]
        print(len(kept))
    elif KIND == "abort":
        dist.distributed_c10d._abort_process_group()
        load_batch()
    elif KIND == "leaves":
        os._exit(7)


def main() -> None:
    """Start, three sound steps, trouble, the end."""
    device = 0 if KIND == "one-gpu-for-two" else int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    if KIND == "never-starts" and MINE:
        time.sleep(LONG_S)
    server = os.environ.get("TORCH_WORKER_SERVER_SOCKET")
    served = torch._C._distributed_c10d._WorkerServer(server, -1) if server else None
    dist.init_process_group("nccl", timeout=timedelta(seconds=TIMEOUT_S))
    for number in range(3):
        step(4096 + number)
    if marks := os.environ.get("TROUBLE_MARKS"):
        (Path(marks) / f"begins.{RANK}").touch()
    trouble()
    dist.barrier(device_ids=[device])
    dist.destroy_process_group()
    del served


if __name__ == "__main__":
    main()
