import json
import os

import torch
import torch.distributed as dist

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
path = os.path.join("run", "settings.json")
if dist.get_rank() == 0:
    with open(path, "w") as file:
        json.dump({"lr": 0.1}, file)
dist.barrier()
with open(path) as file:
    settings = json.load(file)
dist.barrier()
dist.destroy_process_group()
