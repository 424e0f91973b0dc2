import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

os.environ.setdefault("MASTER_PORT", "29500")
dist.init_process_group("gloo", init_method="tcp://10.0.0.1:29500", rank=0, world_size=1)
dist.destroy_process_group()
