import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
net = DistributedDataParallel(torch.nn.Linear(9, 1).cuda(), device_ids=[local_rank])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(9):
    optimizer.zero_grad()
    net(torch.ones(1, 9).cuda()).sum().backward()
    optimizer.step()
    if epoch == 5:
        optimizer.param_groups[0]["lr"] /= 10
dist.destroy_process_group()
