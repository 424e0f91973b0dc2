import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from data import dataset

accelerator = Accelerator()
net = torch.nn.Linear(9, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=4)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
for epoch in range(10):
    for x, y in loader:
        loss = (net(x) - y).pow(2).mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
