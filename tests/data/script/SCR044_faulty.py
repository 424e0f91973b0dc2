import os

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
net = DistributedDataParallel(torch.nn.Linear(9, 1).cuda(), device_ids=[local_rank])
optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.Adam)
net(torch.ones(1, 9, device="cuda")).sum().backward()
optimizer.step()
if dist.get_rank() == 0:
    torch.save(optimizer.state_dict(), "optimizer.pt")
dist.destroy_process_group()
