"""Every collective of torch's nccl backend, its result against what arithmetic says: `torchrun collectives.py`."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SIZES = (1, 1000, 300_001)  # elements: less than a chunk, several channels, several loops
SUM = sum(range(1, WORLD + 1))


def full(value: float, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """On this rank's device."""
    return torch.full((size,), value, dtype=dtype, device="cuda")


def same(name: str, tensor: torch.Tensor, expected: torch.Tensor) -> None:
    """Raises AssertionError with what differs."""
    assert torch.equal(tensor.cpu(), expected.cpu()), f"rank {RANK}: {name}: {tensor[:4]} is not {expected[:4]}"


def ranks(size: int) -> torch.Tensor:
    """Rank 0's part, then rank 1's, ..."""
    return torch.cat([torch.full((size,), float(rank)) for rank in range(WORLD)])


def check(size: int) -> None:
    """All of them with parts of this size."""
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        data = full(RANK + 1, size, dtype)
        dist.all_reduce(data)
        same(f"all_reduce {dtype}", data, full(SUM, size, dtype))
    for operation, value in ((dist.ReduceOp.MAX, WORLD), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.AVG, SUM / WORLD)):
        data = full(RANK + 1, size)
        dist.all_reduce(data, op=operation)
        same(f"all_reduce {operation}", data, full(value, size))
    data = full(RANK, size)
    dist.broadcast(data, WORLD - 1)
    same("broadcast", data, full(WORLD - 1, size))
    data = full(RANK + 1, size)
    dist.reduce(data, 0)
    if RANK == 0:
        same("reduce", data, full(SUM, size))
    out = torch.empty(size * WORLD, device="cuda")
    dist.all_gather_into_tensor(out, full(RANK, size))
    same("all_gather", out, ranks(size))
    out = torch.empty(size, device="cuda")
    dist.reduce_scatter_tensor(out, full(RANK + 1, size * WORLD))
    same("reduce_scatter", out, full(SUM, size))
    out = torch.empty(size * WORLD, device="cuda")
    dist.all_to_all_single(out, full(RANK, size * WORLD))
    same("all_to_all", out, ranks(size))
    data = full(-1, size)
    sent = dist.P2POp(dist.isend, full(RANK, size), (RANK + 1) % WORLD)
    came = dist.P2POp(dist.irecv, data, (RANK - 1) % WORLD)
    for work in dist.batch_isend_irecv([sent, came]):
        work.wait()
    same("send and receive", data, full((RANK - 1) % WORLD, size))


def main() -> None:
    """One line where all is right."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    for size in SIZES:
        check(size)
    dist.barrier(device_ids=[torch.cuda.current_device()])
    dist.destroy_process_group()
    print("all values are right", flush=True)


if __name__ == "__main__":
    main()
