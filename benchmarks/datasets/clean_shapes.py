"""Nothing is wrong with these either: samples of every structure, padded ones, and parts of datasets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, random_split

from benchmarks.datasets.clean import PositionalRead, Table
from benchmarks.datasets.material import COUNT, Samples, sample


class Pair(NamedTuple):
    """A sample of two."""

    image: Tensor
    label: int


class NamedPairs(Samples):
    """A named tuple."""

    def __getitem__(self, index: int) -> Pair:
        return Pair(sample(index), index % 10)


@dataclass
class Picture:
    """A sample that torch's collate does not know."""

    image: Tensor
    name: str


class _Pictures(Samples):
    def __getitem__(self, index: int) -> Picture:
        return Picture(sample(index), f"picture {index}")


def _pictures(batch: list[Picture]) -> dict[str, Any]:
    return {
        "image": torch.stack([picture.image for picture in batch]),
        "name": [picture.name for picture in batch],
    }


def dataclass_with_collate() -> tuple[Dataset[Any], dict[str, Any]]:
    """A dataclass and the collate function that it needs."""
    return _Pictures(), {"batch_size": 8, "num_workers": 2, "collate_fn": _pictures}


class Nested(Samples):
    """Strings, NumPy scalars and lists of the same length, nested."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "name": f"sample {index}",
            "targets": {"box": [float(index), 1.0], "area": np.float32(index), "crowd": np.int64(index % 2)},
            "views": (sample(index), np.full(3, index, dtype=np.float32)),
        }


class _Sentences(Samples):
    def __getitem__(self, index: int) -> Tensor:
        return torch.arange(1, 3 + index % 17)


def _padded(batch: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)


def padded_sentences() -> DataLoader[Any]:
    """Ragged lengths and a collate function that pads them."""
    return DataLoader(_Sentences(), batch_size=8, num_workers=2, collate_fn=_padded)


def subset() -> Dataset[Any]:
    """Every second sample."""
    return Subset(Table(), range(0, COUNT, 2))


def joined() -> Dataset[Any]:
    """Two datasets behind each other."""
    return ConcatDataset([Table(), PositionalRead()])


def seeded_split() -> Dataset[Any]:
    """`random_split` with a seeded generator."""
    return random_split(Table(), [200, 56], generator=torch.Generator().manual_seed(1))[0]
