import torch.distributed as dist
from torchvision import datasets

dist.init_process_group("gloo")
data = datasets.MNIST("data", download=True)
dist.destroy_process_group()
