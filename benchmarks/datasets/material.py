"""What the collection is made of: a folder that goes away, samples that tell which index they are, a rank."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

COUNT = 256
WIDTH = 64
RECORD = WIDTH * 4


class Samples(Dataset[Any]):
    """A map-style dataset of `count` samples; what a sample is, the others say."""

    count = COUNT

    def __len__(self) -> int:
        return self.count


def folder() -> Path:
    """A new folder in the benchmark's scratch place, or in the system's."""
    return Path(tempfile.mkdtemp(prefix="samples-", dir=os.environ.get("DATASETS_SCRATCH")))


def sample(index: int) -> Tensor:
    """The true content of an index: no two are equal."""
    return torch.arange(WIDTH, dtype=torch.float32) + index * 1000


def table(count: int = COUNT) -> Tensor:
    """All samples, one a row."""
    return torch.stack([sample(index) for index in range(count)])


def encoded(index: int) -> bytes:
    """One sample as it lies in a file."""
    return sample(index).numpy().tobytes()


def decoded(record: bytes) -> Tensor:
    """The sample that a record holds; raises where the record is cut short."""
    return torch.frombuffer(bytearray(record), dtype=torch.float32).reshape(WIDTH)


def packed(count: int = COUNT) -> Path:
    """One file with all records behind each other."""
    path = folder() / "samples.bin"
    path.write_bytes(b"".join(encoded(index) for index in range(count)))
    return path


def scattered(count: int = COUNT) -> list[Path]:
    """One file a sample."""
    root = folder()
    paths = [root / f"{index:06d}.bin" for index in range(count)]
    for index, path in enumerate(paths):
        path.write_bytes(encoded(index))
    return paths


def rank() -> int:
    """This process's rank, as torchrun tells it."""
    return int(os.environ.get("RANK", "0"))


def world() -> int:
    """How many ranks there are, as torchrun tells it."""
    return int(os.environ.get("WORLD_SIZE", "1"))
