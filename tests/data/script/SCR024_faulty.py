import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
data = [1, 2, 3, 4]
sampler = DistributedSampler(data)
loader = DataLoader(data, shuffle=True, num_workers=2)
for epoch in range(2):
    sampler.set_epoch(epoch)
dist.destroy_process_group()
