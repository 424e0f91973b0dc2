"""Nothing is wrong with these: randomness and reading as it should be, and what looks odd but is right."""

from __future__ import annotations

import functools
import os
import random
import time
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from benchmarks.datasets.material import (
    COUNT,
    RECORD,
    WIDTH,
    Samples,
    decoded,
    packed,
    rank,
    sample,
    scattered,
    table,
)


class Table(Samples):
    """Rows of a tensor."""

    def __init__(self) -> None:
        self.table = table()

    def __getitem__(self, index: int) -> Tensor:
        return self.table[index]


class TorchNoise(Samples):
    """Noise of torch's global generator."""

    def __getitem__(self, index: int) -> Tensor:
        return sample(index) + torch.randn(WIDTH)


class GlobalNumpyNoise(Samples):
    """Noise of NumPy's global generator."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return sample(index) + torch.from_numpy(np.random.normal(size=WIDTH).astype(np.float32)), index % 10


class PythonFlip(Samples):
    """Flipped by Python's global generator."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        image = sample(index)
        return {"image": image.flip(0) if random.random() < 0.5 else image, "label": torch.tensor(index % 10)}


class RandomCrop(Samples):
    """A random crop of all three global generators."""

    def __getitem__(self, index: int) -> Tensor:
        start = int(torch.randint(0, 16, (1,))) + random.randrange(8) + int(np.random.randint(8))
        return sample(index)[start : start + 32].clone()


class Mixup(Samples):
    """Each sample mixed with a random other one."""

    def __init__(self) -> None:
        self.table = table()

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        weight, other = torch.rand(1), random.randrange(COUNT)
        return self.table[index] * weight + self.table[other] * (1 - weight), torch.stack([weight, 1 - weight])


class SeededByIndex(Samples):
    """A generator for each index."""

    def __getitem__(self, index: int) -> Tensor:
        return sample(index) + float(np.random.default_rng([17, index]).normal())


class ForkedRandomness(Samples):
    """Reseeds inside `fork_rng`, which gives the stream back."""

    def __getitem__(self, index: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(index)
            mask = torch.rand(WIDTH) < 0.5
        return sample(index) * mask + torch.randn(1)


class PermutedAtStart(Samples):
    """A private generator used only in the constructor."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)
        self.order = self.rng.permutation(COUNT)

    def __getitem__(self, index: int) -> Tensor:
        return sample(int(self.order[index]))


class _Reseeded(Samples):
    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def __getitem__(self, index: int) -> Tensor:
        return sample(index) + float(self.rng.normal())


def _seed_private(worker: int) -> None:
    del worker
    info = get_worker_info()
    assert info is not None
    info.dataset.rng = np.random.default_rng(info.seed)  # type: ignore[attr-defined]


def private_seeded_in_worker() -> DataLoader[Any]:
    """A private generator that `worker_init_fn` seeds from the worker's seed."""
    return DataLoader(_Reseeded(), batch_size=8, num_workers=2, worker_init_fn=_seed_private)


def _seed_libraries(worker: int) -> None:
    del worker
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def documented_worker_init() -> DataLoader[Any]:
    """The `worker_init_fn` of PyTorch's page on reproducibility, with a generator of the loader's own."""
    generator = torch.Generator().manual_seed(100 + rank())
    data = GlobalNumpyNoise()
    return DataLoader(data, 8, shuffle=True, num_workers=2, worker_init_fn=_seed_libraries, generator=generator)


class _EpochSeeded(Samples):
    def __init__(self) -> None:
        self.epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """What the training loop calls: all workers see it."""
        self.epoch.fill_(epoch)

    def __getitem__(self, index: int) -> Tensor:
        return sample(index) + float(np.random.default_rng([0, int(self.epoch), index]).normal())


class _CountsEpochs(DataLoader[Any]):
    next_epoch = 0

    def __iter__(self) -> Any:
        self.dataset.set_epoch(self.next_epoch)  # type: ignore[attr-defined]
        self.next_epoch += 1
        return super().__iter__()


def epoch_in_shared_tensor() -> DataLoader[Any]:
    """Seeded by (seed, epoch, index); the epoch lies in shared memory for persistent workers."""
    return _CountsEpochs(_EpochSeeded(), batch_size=8, num_workers=2, persistent_workers=True)


class Timestamped(Samples):
    """A time of loading beside a good tensor."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": sample(index), "loaded_at": time.time()}


class OpenedByProcess(Samples):
    """Opened at first use, once a process."""

    def __init__(self) -> None:
        self.path = packed()
        self.opened: dict[int, BinaryIO] = {}

    def __getitem__(self, index: int) -> Tensor:
        file = self.opened.get(os.getpid()) or self.opened.setdefault(os.getpid(), self.path.open("rb"))
        file.seek(index * RECORD)
        return decoded(file.read(RECORD))


class PositionalRead(Samples):
    """One descriptor for all, read with `os.pread`, which has no offset to share."""

    def __init__(self) -> None:
        self.path = packed()
        self.descriptor = os.open(self.path, os.O_RDONLY)

    def __reduce__(self) -> tuple[type[PositionalRead], tuple[()]]:
        return PositionalRead, ()

    def __getitem__(self, index: int) -> Tensor:
        return decoded(os.pread(self.descriptor, RECORD, index * RECORD))


class Mapped(Samples):
    """`np.memmap`, copied out."""

    def __init__(self) -> None:
        self.map = np.memmap(packed(), dtype=np.float32, mode="r", shape=(COUNT, WIDTH))

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.map[index].copy())


class FilePerSample(Samples):
    """A file for each sample, opened and closed."""

    def __init__(self) -> None:
        self.files = scattered()

    def __getitem__(self, index: int) -> tuple[Tensor, str]:
        return decoded(self.files[index].read_bytes()), self.files[index].stem


class RawInLru(Samples):
    """`lru_cache` of the raw picture, augmented after it."""

    def __init__(self) -> None:
        self.files = scattered()

    def __getitem__(self, index: int) -> Tensor:
        return _read(str(self.files[index])) + torch.randn(1)


@functools.lru_cache(64)
def _read(path: str) -> Tensor:
    with open(path, "rb") as file:
        return decoded(file.read())


class RawInDict(Samples):
    """Filled at first use, each process for itself, and never changed after."""

    def __init__(self) -> None:
        self.cache: dict[int, Tensor] = {}

    def __getitem__(self, index: int) -> Tensor:
        return self.cache.setdefault(index, sample(index)).clone()


class DecodedBuffer(Samples):
    """A working buffer that is copied before it is handed out."""

    def __init__(self) -> None:
        self.buffer = torch.zeros(WIDTH)

    def __getitem__(self, index: int) -> Tensor:
        return self.buffer.copy_(sample(index)).clone()
