import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(7)
net = torch.nn.Linear(9, 1).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(100):
    net(torch.ones(1, 9, device="cuda")).sum().backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
