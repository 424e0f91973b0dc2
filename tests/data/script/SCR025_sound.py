import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
data, validation = torch.utils.data.random_split([1, 2, 3, 4], [3, 1])
sampler = DistributedSampler(data, seed=0)
loader = DataLoader(data, sampler=sampler, num_workers=2)
for epoch in range(2):
    sampler.set_epoch(epoch)
dist.destroy_process_group()
