"""Defects of hidden state: samples that depend on what was read before, or on an epoch that workers never see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.datasets.material import COUNT, Samples, sample, table


class Curriculum(Samples):
    """A counter in the dataset makes samples harder; each worker counts for itself."""

    def __init__(self) -> None:
        self.seen = 0

    def __getitem__(self, index: int) -> Tensor:
        self.seen += 1
        return sample(index) * (1 + self.seen // 10)


class ChangedInPlace(Samples):
    """The sample in memory is scaled at every reading."""

    def __init__(self) -> None:
        self.table = table()

    def __getitem__(self, index: int) -> Tensor:
        return self.table[index].mul_(1.5).add_(1).clone()


class NormalisedTwice(Samples):
    """An annotation in a list is converted in place, each time that it is read."""

    def __init__(self) -> None:
        self.boxes = [[float(index), 10.0, 20.0] for index in range(COUNT)]

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        box = self.boxes[index]
        box[2] = box[1] + box[2]
        return {"image": sample(index), "box": torch.tensor(box)}


class NeighbourOfLast(Samples):
    """A pair with the sample that was read before."""

    def __init__(self) -> None:
        self.last = 0

    def __getitem__(self, index: int) -> Tensor:
        pair = torch.stack([sample(index), sample(self.last)])
        self.last = index
        return pair


class _Difficulty(Samples):
    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """What the training loop calls."""
        self.epoch = epoch

    def __getitem__(self, index: int) -> Tensor:
        return sample(index) * (1 + self.epoch)


def stale_epoch() -> DataLoader[Any]:
    """Persistent workers keep the dataset of epoch 0, whatever `set_epoch` says in the parent."""
    return DataLoader(_Difficulty(), batch_size=8, num_workers=2, persistent_workers=True)


class _Schedule(DataLoader[Any]):
    epoch = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.dataset.epoch = self.epoch  # type: ignore[attr-defined]
        self.epoch += 1
        return super().__iter__()


def stale_schedule() -> DataLoader[Any]:
    """The loader sets the dataset's epoch itself, too late for persistent workers."""
    return _Schedule(_Difficulty(), batch_size=8, num_workers=2, persistent_workers=True)
