"""What a person writes by hand, to be run under torchrun: three sizes of all_reduce, 20 times each."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist


def main() -> None:
    """Print the mean time of each size, and the seconds of all of it."""
    dist.init_process_group("gloo")
    started = time.perf_counter()
    for size in (2**10, 2**20, 2**26):
        buffer = torch.ones(size // 4)
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(20):
            dist.all_reduce(buffer)
        if dist.get_rank() == 0:
            print(size, (time.perf_counter() - begin) / 20)
    if dist.get_rank() == 0:
        print("measuring", time.perf_counter() - started)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
