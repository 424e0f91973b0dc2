import deepspeed
import torch

from data import dataset

net = torch.nn.Linear(9, 1)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
engine, optimizer, loader, _ = deepspeed.initialize(
    model=net, optimizer=optimizer, training_data=dataset, config="ds.json"
)
for x, y in loader:
    loss = (engine(x) - y).pow(2).mean()
    engine.backward(loss)
    optimizer.step()
