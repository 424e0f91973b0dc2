import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

os.environ["MASTER_PORT"] = "80000"
dist.init_process_group("gloo")
dist.destroy_process_group()
