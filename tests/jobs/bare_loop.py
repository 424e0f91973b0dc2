"""all_reduce as anyone would time it, without ncclcheck: BACKEND BYTES ITERATIONS, one process a rank.

Rank and world come from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Rank 0 prints the median over iterations of
the slowest rank's microseconds.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
import torch.distributed as dist


def main(backend: str, size: int, iterations: int) -> None:
    """Warm up, then time each iteration after a barrier."""
    dist.init_process_group(backend)
    device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
    buffer = torch.zeros(size // 4, device=device)
    took = [_once(buffer) for _ in range(iterations + 3)][3:]
    slowest = torch.tensor(took, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(statistics.median(slowest.tolist()) * 1e6)
    dist.destroy_process_group()


def _once(buffer: torch.Tensor) -> float:
    dist.barrier()
    if buffer.device.type == "cpu":
        begin = time.perf_counter()
        dist.all_reduce(buffer)
        return time.perf_counter() - begin
    torch.cuda.synchronize()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    dist.all_reduce(buffer)
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1e3


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
