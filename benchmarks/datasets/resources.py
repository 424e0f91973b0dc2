"""Defects of resources: descriptors, memory, /dev/shm, workers, speed, and what cannot be pickled."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.datasets.material import COUNT, RECORD, WIDTH, Samples, decoded, packed, sample, scattered, table
from benchmarks.datasets.shapes import Plain


class FilesLeftOpen(Samples):
    """Every sample's file is opened and kept."""

    def __init__(self) -> None:
        self.files = scattered()
        self.opened: list[BinaryIO] = []

    def __getitem__(self, index: int) -> Tensor:
        self.opened.append(self.files[index].open("rb"))
        return decoded(self.opened[-1].read())


class DescriptorsLost(Samples):
    """`os.open` without `os.close`."""

    def __init__(self) -> None:
        self.path = str(packed())

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return decoded(os.pread(os.open(self.path, os.O_RDONLY), RECORD, index * RECORD)), index % 10


class MapsKept(Samples):
    """A new memory map for every sample, kept by a list: descriptors and address space."""

    def __init__(self) -> None:
        self.path = packed()
        self.maps: list[mmap.mmap] = []

    def __getitem__(self, index: int) -> Tensor:
        with self.path.open("rb") as file:
            self.maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return decoded(self.maps[-1][index * RECORD : (index + 1) * RECORD])


class KeepsHistory(Samples):
    """A history of decoded pictures that nobody empties."""

    def __init__(self) -> None:
        self.history: list[bytes] = []

    def __getitem__(self, index: int) -> Tensor:
        self.history.append(bytes([index % 256]) * (256 << 10))
        return sample(index)


class KeepsTensors(Samples):
    """Statistics of each sample, with the tensor that they were made of."""

    def __init__(self) -> None:
        self.statistics: dict[int, tuple[float, Tensor]] = {}

    def __getitem__(self, index: int) -> Tensor:
        decoded_frames = torch.full((1 << 16,), float(index))
        self.statistics[len(self.statistics)] = (float(decoded_frames.mean()), decoded_frames)
        return sample(index)


class ListOfDicts(Samples):
    """Annotations as 200 000 dicts: each reading copies their pages, because it counts references."""

    count = 200_000

    def __init__(self) -> None:
        self.rows = [
            {"path": f"images/{i:09d}.jpg", "label": float(i), "box": [i, i + 1]} for i in range(self.count)
        ]

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        return {"image": torch.full((WIDTH,), float(index)), "box": torch.tensor(row["box"])}


def _as_list(batch: list[Tensor]) -> list[Tensor]:
    return batch


class _Windows(Samples):
    def __init__(self) -> None:
        self.recording = torch.arange(1 << 20, dtype=torch.float32)

    def __getitem__(self, index: int) -> Tensor:
        return self.recording[index * 16 : index * 16 + 16]


def views_in_lists() -> DataLoader[Any]:
    """Windows of one recording in a plain list: the whole recording travels with each."""
    return DataLoader(_Windows(), batch_size=4, collate_fn=_as_list, num_workers=2)


class CropOfLarge(Samples):
    """A crop that keeps its 4 MiB picture."""

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((1024, 1024), float(index))[:8, :8]


def crops_in_lists() -> DataLoader[Any]:
    """Crops handed over without a copy."""
    return DataLoader(CropOfLarge(), batch_size=2, collate_fn=_as_list, num_workers=1)


class _Volumes(Samples):
    def __getitem__(self, index: int) -> Tensor:
        return torch.full((256, 1024), float(index))


def batches_beyond_shm() -> DataLoader[Any]:
    """4 workers x 4 batches x 16 MiB, where /dev/shm has 64 MiB."""
    return DataLoader(_Volumes(), batch_size=16, num_workers=4, prefetch_factor=4)


class _ManyParts(Samples):
    def __getitem__(self, index: int) -> list[Tensor]:
        return [part.clone() for part in torch.split(sample(index), 4)]


def more_tensors_than_descriptors() -> DataLoader[Any]:
    """16 tensors a sample in lists, each a descriptor, where 256 may be open."""
    return DataLoader(_ManyParts(), batch_size=32, collate_fn=_as_list, num_workers=2)


def sixty_four_workers() -> tuple[Plain, dict[str, Any]]:
    """More workers than this machine has cores."""
    return Plain(), {"batch_size": 4, "num_workers": max(64, 4 * (os.cpu_count() or 1))}


class _Decoding(Samples):
    def __getitem__(self, index: int) -> Tensor:
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass
        return sample(index)


def slower_than_needed() -> DataLoader[Any]:
    """A millisecond of decoding a sample, where the GPU takes 100 000 a second."""
    return DataLoader(_Decoding(), batch_size=16, num_workers=1)


class LambdaTransform(Samples):
    """A lambda as transform: it cannot be pickled for spawn or forkserver."""

    def __init__(self) -> None:
        self.transform: Callable[[Tensor], Tensor] = lambda image: image / 255

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(sample(index))


def lambda_collate() -> DataLoader[Any]:
    """A lambda as collate function."""
    return DataLoader(Plain(), batch_size=4, num_workers=2, collate_fn=lambda batch: torch.stack(batch) / 255)


def local_class() -> Samples:
    """A class inside a function."""

    class Local(Samples):
        def __getitem__(self, index: int) -> Tensor:
            return sample(index)

    return Local()


class LockAttribute(Samples):
    """A thread lock as attribute cannot be pickled."""

    def __init__(self) -> None:
        self.table = table()
        self.lock = threading.Lock()

    def __getitem__(self, index: int) -> Tensor:
        with self.lock:
            return self.table[index].clone()


class RowsOfGenerator(Samples):
    """Keeps the generator that it read its rows from."""

    def __init__(self) -> None:
        self.source = (sample(index) for index in range(COUNT))
        self.rows = list(self.source)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index].clone()
