import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
net = torch.nn.Sequential(torch.nn.Conv2d(3, 9, 3), torch.nn.BatchNorm2d(9)).cuda()
net = DistributedDataParallel(net, device_ids=[local_rank])
net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
dist.destroy_process_group()
