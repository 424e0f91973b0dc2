import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("nccl")
for step in range(10):
    if dist.get_rank() == 0:
        print(step)
    dist.barrier()
dist.destroy_process_group()
