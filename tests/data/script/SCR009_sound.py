import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from data import Images

dist.init_process_group("gloo")
images = Images()
sampler = DistributedSampler(images)
loader = DataLoader(images, batch_size=8, sampler=sampler)
for epoch in range(90):
    sampler.set_epoch(epoch)
    for batch in loader:
        print(len(batch))
dist.destroy_process_group()
