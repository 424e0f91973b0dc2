import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, world_size):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = torch.cuda.device_count()
    mp.spawn(work, args=(world_size,), nprocs=world_size)
