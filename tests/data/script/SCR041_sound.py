import contextlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
net = DistributedDataParallel(torch.nn.Linear(9, 1).cuda(), device_ids=[local_rank])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(100):
    last = (step + 1) % 4 == 0
    with contextlib.nullcontext() if last else net.no_sync():
        net(torch.ones(1, 9).cuda()).sum().backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
