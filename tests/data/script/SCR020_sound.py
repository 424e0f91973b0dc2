import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from datetime import timedelta

from data import download

dist.init_process_group("gloo", timeout=timedelta(hours=2))
if dist.get_rank() == 0:
    download()
dist.barrier()
print(timedelta)
dist.destroy_process_group()
