import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
net = torch.nn.Linear(9, 1)
net = FullyShardedDataParallel(net, device_id=local_rank)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
for step in range(100):
    optimizer.zero_grad()
    net(torch.ones(1, 9).cuda()).sum().backward()
    optimizer.step()
dist.destroy_process_group()
