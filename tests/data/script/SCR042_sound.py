import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank = dist.get_rank()
weights = torch.zeros(9, device="cuda")
dist.broadcast(weights, src=0)
dist.destroy_process_group()
