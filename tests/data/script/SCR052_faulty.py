import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, world_size, dataset):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = torch.cuda.device_count()
    dataset = torch.utils.data.TensorDataset(torch.randn(1000000, 100))
    mp.spawn(work, args=(world_size, dataset), nprocs=world_size)
