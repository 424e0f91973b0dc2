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
loader = DataLoader(images, batch_size=8, sampler=sampler, shuffle=True)
sampler.set_epoch(0)
dist.destroy_process_group()
