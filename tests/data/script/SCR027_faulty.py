import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DDP(torch.nn.Linear(4, 4).cuda())
data = [1, 2, 3, 4]
loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
dist.destroy_process_group()
