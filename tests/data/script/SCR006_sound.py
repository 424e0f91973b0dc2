import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
model.load_state_dict(torch.load("checkpoint.pt", map_location="cpu"))
model = DDP(model)
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "checkpoint.pt")
dist.destroy_process_group()
