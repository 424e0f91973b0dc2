import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from data import dataset

accelerator = Accelerator(mixed_precision="fp16")
net = torch.nn.Linear(9, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(dataset, batch_size=8, shuffle=True)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
for sample, label in loader:
    loss = torch.nn.functional.mse_loss(net(sample), label)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
