import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from data import Images

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(8, 8))
images = Images()
loader = DataLoader(images, batch_size=8, sampler=torch.utils.data.distributed.DistributedSampler(images))
for batch in loader:
    model(batch).sum().backward()
dist.destroy_process_group()
