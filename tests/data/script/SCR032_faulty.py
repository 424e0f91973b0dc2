import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from data import dataset


def make_loader(dataset):
    sampler = DistributedSampler(dataset)
    return DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=4), sampler


local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
net = DistributedDataParallel(torch.nn.Linear(9, 1).cuda(), device_ids=[local_rank])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
loader, sampler = make_loader(dataset)
for epoch in range(10):
    sampler.set_epoch(epoch)
    total = torch.zeros((), device="cuda")
    for x, y in loader:
        loss = (net(x.cuda()) - y.cuda()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    scheduler.step(total)
dist.destroy_process_group()
