import torch.distributed as dist
from torchvision import datasets

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank != 0:
    dist.barrier()
data = datasets.MNIST("data", download=True)
if rank == 0:
    dist.barrier()
dist.destroy_process_group()
