"""A user's model and data: BatchNorm, few samples, a worker that is forked."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Noise and what class it is."""

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        chance = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=chance), torch.tensor(index % 4)


class Unpicklable(Points):
    """Holds a function that has no name."""

    def __init__(self) -> None:
        self.change = lambda value: value


def model() -> nn.Module:
    """Normalises over the batch, and part of it is driven by one process for all GPUs."""
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.DataParallel(nn.Linear(32, 4)))


def forked() -> DataLoader[tuple[Tensor, Tensor]]:
    """A loader with a worker of its own and a sampler for all ranks."""
    points = Points()
    sampler: DistributedSampler[tuple[Tensor, Tensor]] = DistributedSampler(points)
    return DataLoader(points, 3, sampler=sampler, num_workers=1, multiprocessing_context="fork", drop_last=True)


def unpicklable() -> Unpicklable:
    """A dataset that only fork can hand over."""
    return Unpicklable()
