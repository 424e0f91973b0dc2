import os

import torch
import torch.distributed as dist
import wandb

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
if dist.get_rank() == 0:
    wandb.init(project="net")
dist.destroy_process_group()
