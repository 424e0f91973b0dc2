"""Small datasets and loaders for the tests of what a real DataLoader shows."""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

ROWS = torch.arange(96.0)[:, None].repeat(1, 4)


class Rows(Dataset[Any]):
    """Clean: a row of a table."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> Any:
        return ROWS[index]


class Noise(Rows):
    def __getitem__(self, index: int) -> Any:
        return ROWS[index] + torch.randn(4), index


class Flip(Rows):
    def __getitem__(self, index: int) -> Any:
        return ROWS[index].flip(0) if random.random() < 0.5 else ROWS[index] + 1


class OwnNoise(Rows):
    """Its own generator, which is copied into every worker."""

    def __init__(self) -> None:
        self.rng: Any = random.Random(0)

    def __getitem__(self, index: int) -> Any:
        return ROWS[index] + self.rng.random()


class OwnNoiseUnused(OwnNoise):
    def __getitem__(self, index: int) -> Any:
        return ROWS[index]


class OwnNoiseLater(OwnNoise):
    """Made at the first read, from the worker's own seed."""

    def __init__(self) -> None:
        self.rng = None

    def __getitem__(self, index: int) -> Any:
        if self.rng is None:
            info = get_worker_info()
            self.rng = random.Random(info.seed if info else 0)
        return super().__getitem__(index)


class ByIndex(Rows):
    def __getitem__(self, index: int) -> Any:
        return ROWS[index] + random.Random(index).random()


class Seeds(Rows):
    def __getitem__(self, index: int) -> Any:
        torch.manual_seed(0)
        return ROWS[index] + torch.randn(4)


class SeedsByIndex(Rows):
    def __getitem__(self, index: int) -> Any:
        torch.manual_seed(index)
        return ROWS[index] + torch.randn(4)


class Restores(Rows):
    def __getitem__(self, index: int) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(index)
            return ROWS[index] + torch.randn(4)


class Frozen(Rows):
    @functools.cache  # noqa: B019
    def __getitem__(self, index: int) -> Any:
        return ROWS[index] + torch.randn(4)


class CachedAndAugmented(Rows):
    @functools.cache  # noqa: B019
    def load(self, index: int) -> Any:
        return ROWS[index]

    def __getitem__(self, index: int) -> Any:
        return self.load(index) + torch.randn(4)


class Epochs(Rows):
    """Another order in every epoch, if it hears of it."""

    def __init__(self) -> None:
        self.epoch: Any = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        return ROWS[(index + 7 * int(self.epoch)) % len(ROWS)]


class EpochsShared(Epochs):
    def __init__(self) -> None:
        self.epoch = torch.zeros((), dtype=torch.long)
        self.epoch.share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self.epoch.fill_(epoch)


class Shuffled(IterableDataset[Any]):
    """Clean: a shuffle buffer with a generator that all workers have alike, and each its own share."""

    def __init__(self) -> None:
        self.rng = random.Random(0)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        buffer: list[Any] = []
        for row in ROWS[info.id :: info.num_workers] if info else ROWS:
            buffer.append(row)
            if len(buffer) > 8:
                yield buffer.pop(self.rng.randrange(len(buffer)))
        yield from buffer


class Endless(IterableDataset[Any]):
    def __init__(self) -> None:
        self.rng = random.Random(0)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield torch.tensor(self.rng.random())


class InWorker(Rows):
    """Does something at one sample, in workers only."""

    def __getitem__(self, index: int) -> Any:
        if multiprocessing.current_process().daemon and index == 5:
            self.act()
        return ROWS[index]

    def act(self) -> None:
        raise NotImplementedError


class Crashes(InWorker):
    def act(self) -> None:
        ctypes.string_at(0)


class Leaves(InWorker):
    def act(self) -> None:
        os._exit(3)


class Hangs(InWorker):
    def act(self) -> None:
        time.sleep(600)


class Forks(InWorker):
    def act(self) -> None:
        with multiprocessing.Pool(1) as pool:
            pool.map(abs, [1])


class Locked(Rows):
    """A lock that a thread of the factory holds."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            return ROWS[index]


class Broken(Rows):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise ValueError("no such picture")
        return ROWS[index]


class Of(Dataset[Any]):
    """Samples from a function of the index."""

    def __init__(self, sample: Any, length: int = 200) -> None:
        self.sample, self.length = sample, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


class StreamOf(IterableDataset[Any]):
    def __init__(self, sample: Any, length: int = 200) -> None:
        self.sample, self.length = sample, length

    def __iter__(self) -> Iterator[Any]:
        return map(self.sample, range(self.length))


class ResettingLoader(DataLoader[Any]):
    """Seeds its generator anew in every epoch."""

    def __iter__(self) -> Any:
        assert isinstance(self.generator, torch.Generator)
        self.generator.manual_seed(0)
        return super().__iter__()


class TellingLoader(DataLoader[Any]):
    """Tells its dataset the epoch."""

    epoch = 0

    def __iter__(self) -> Any:
        self.dataset.set_epoch(self.epoch)  # type: ignore[attr-defined]
        self.epoch += 1
        return super().__iter__()


def seed_by_constant(_: int) -> None:
    torch.manual_seed(42)


def seed_by_id(worker: int) -> None:
    torch.manual_seed(worker)


def give_generator(_: int) -> None:
    info: Any = get_worker_info()
    info.dataset.rng = random.Random(info.seed)


def mix(batch: list[Any]) -> Any:
    return torch.stack([row for row, _ in batch]) * random.random()


def pad(batch: list[Any]) -> Any:
    return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)


def columns(batch: list[Any]) -> list[Any]:
    return [list(column) for column in zip(*batch, strict=True)]


class BeginsAnew(Rows):
    """Each sample makes a generator, all of them with the same seed."""

    def __getitem__(self, index: int) -> Any:
        return ROWS[index] + random.Random(7).random()


class TensorsAnew(Rows):
    """The same of torch's."""

    def __getitem__(self, index: int) -> Any:
        return ROWS[index] + torch.randn(4, generator=torch.Generator().manual_seed(7))


class Mixup:
    """Mixes a batch by a generator of numpy's that begins anew with each batch, or by torch's."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    def __call__(self, samples: list[Any]) -> Any:
        rows = torch.stack(samples)
        drawn = torch.rand(()).item() if self.seed is None else numpy.random.default_rng(self.seed).random()
        return drawn * rows + (1 - drawn) * rows.flip(0)
