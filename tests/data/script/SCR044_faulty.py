import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
net = FSDP(torch.nn.Linear(9, 1).cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(100):
    net(torch.ones(1, 9, device="cuda")).sum().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
