import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("nccl")
model = torch.nn.Linear(8, 8).cuda(int(os.environ["LOCAL_RANK"]))
model.load_state_dict(torch.load("checkpoint.pt", map_location="cpu"))
dist.destroy_process_group()
