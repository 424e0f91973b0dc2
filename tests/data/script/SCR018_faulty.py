import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

model = torch.nn.Linear(8, 8).cuda()
total = 0.0
for step in range(100):
    loss = model(torch.ones(8).cuda()).sum()
    loss.backward()
    total += loss.item()
