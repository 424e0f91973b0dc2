import os

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
net = AutoModelForCausalLM.from_pretrained("gpt2", device_map={"": local_rank})
dist.destroy_process_group()
