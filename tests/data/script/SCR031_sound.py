import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Linear):
    def describe(self):
        return f"{self.in_features} features"


local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
net = DistributedDataParallel(Net(9, 1).cuda(), device_ids=[local_rank])
for epoch in range(10):
    net(torch.ones(1, 9).cuda()).sum().backward()
    if epoch % 5 == 0:
        print(net.module.describe())
dist.destroy_process_group()
