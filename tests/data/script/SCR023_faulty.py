import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
model = DDP(torch.nn.BatchNorm1d(4))
for epoch in range(2):
    model(torch.randn(2, 4)).sum().backward()
    if dist.get_rank() == 0:
        out = model(torch.randn(2, 4))
dist.destroy_process_group()
