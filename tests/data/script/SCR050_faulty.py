import os

import torch
import torch.distributed as dist
import wandb

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
wandb.init(project="net")
dist.destroy_process_group()
