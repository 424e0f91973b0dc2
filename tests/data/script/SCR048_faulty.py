import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
rank = dist.get_rank()
dist.init_process_group("nccl")
print(rank)
dist.destroy_process_group()
