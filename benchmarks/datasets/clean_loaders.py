"""Nothing is wrong with these either: caches, streams, samplers and loaders as they should be."""

from __future__ import annotations

import fcntl
import itertools
import os
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from benchmarks.datasets.clean import Table, TorchNoise
from benchmarks.datasets.material import (
    COUNT,
    Samples,
    decoded,
    encoded,
    folder,
    rank,
    sample,
    scattered,
    table,
    world,
)


class AtomicCache(Samples):
    """A disk cache written aside and renamed."""

    def __init__(self) -> None:
        self.cache = folder()

    def __getitem__(self, index: int) -> Tensor:
        path = self.cache / f"{index}.bin"
        if not path.exists():
            aside = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
            aside.write_bytes(encoded(index))
            os.replace(aside, path)
        return decoded(path.read_bytes())


class LockedCache(Samples):
    """A disk cache whose writer holds a file lock."""

    def __init__(self) -> None:
        self.cache = folder()

    def __getitem__(self, index: int) -> Tensor:
        path = self.cache / f"{index}.bin"
        with open(self.cache / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.write_bytes(encoded(index))
        return decoded(path.read_bytes())


class OwnScratchFile(Samples):
    """A scratch file for each process."""

    def __init__(self) -> None:
        self.folder = folder()

    def __getitem__(self, index: int) -> Tensor:
        scratch = self.folder / f"{os.getpid()}.{threading.get_ident()}"
        scratch.write_bytes(encoded(index))
        return decoded(scratch.read_bytes())


class LazyHdf5(Samples):
    """An HDF5 file opened by each process at first use."""

    def __init__(self) -> None:
        h5py = import_module("h5py")
        self.path = folder() / "images.h5"
        with h5py.File(self.path, "w") as file:
            file["x"] = table().numpy()
        self.opened: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Tensor:
        h5py = import_module("h5py")
        if os.getpid() not in self.opened:
            self.opened[os.getpid()] = h5py.File(self.path, "r")
        return torch.from_numpy(self.opened[os.getpid()]["x"][index])


class LazyLmdb(Samples):
    """An LMDB environment opened by each process at first use."""

    def __init__(self) -> None:
        lmdb = import_module("lmdb")
        self.path = str(folder() / "images.lmdb")
        with lmdb.open(self.path, map_size=1 << 24) as made, made.begin(write=True) as writing:
            for index in range(COUNT):
                writing.put(str(index).encode(), encoded(index))
        self.opened: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Tensor:
        lmdb = import_module("lmdb")
        if os.getpid() not in self.opened:
            self.opened[os.getpid()] = lmdb.open(self.path, readonly=True, lock=False)
        with self.opened[os.getpid()].begin() as reading:
            return decoded(reading.get(str(index).encode()))


class LogsWhatItReads(Samples):
    """A log file opened for appending before the fork."""

    def __init__(self) -> None:
        self.log = open(folder() / "read.log", "a", buffering=1)  # noqa: SIM115

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.log.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.log = open(state["name"], "a", buffering=1)  # noqa: SIM115

    def __getitem__(self, index: int) -> Tensor:
        self.log.write(f"read {index}\n")
        return sample(index)


class SharedTable(Samples):
    """A table in shared memory that is only read."""

    def __init__(self) -> None:
        self.table = table()
        self.table.share_memory_()  # type: ignore[no-untyped-call]

    def __getitem__(self, index: int) -> Tensor:
        return self.table[index].clone()


class SortedListing(Samples):
    """Files in sorted order, the same everywhere."""

    def __init__(self) -> None:
        self.files: list[Path] = sorted(scattered()[0].parent.iterdir())

    def __getitem__(self, index: int) -> Tensor:
        return decoded(self.files[index].read_bytes())


class _Endless(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield sample(int(torch.randint(0, COUNT, (1,)))) + torch.randn(1)


def endless_stream() -> DataLoader[Any]:
    """An infinite stream that draws at random from the global generator, another in each worker."""
    return DataLoader(_Endless(), batch_size=8, num_workers=2)


class _Finite(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return itertools.chain.from_iterable(
            map(sample, range(start, start + 16)) for start in range(0, COUNT, 16)
        )


def finite_stream() -> DataLoader[Any]:
    """A stream read by the main process alone."""
    return DataLoader(_Finite(), batch_size=8)


def batched_by_sampler() -> DataLoader[Any]:
    """A batch sampler over a random one."""
    data = Table()
    batches = BatchSampler(RandomSampler(data), batch_size=8, drop_last=True)
    return DataLoader(data, batch_sampler=batches, num_workers=2)


def weighted() -> DataLoader[Any]:
    """Drawn by weight, with replacement: repeats are meant."""
    weights = [1.0 + index % 3 for index in range(COUNT)]
    return DataLoader(Table(), batch_size=8, sampler=WeightedRandomSampler(weights, COUNT), num_workers=2)


def distributed() -> DataLoader[Any]:
    """A DistributedSampler with this rank and world; the loop calls its `set_epoch`."""
    data = TorchNoise()
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=world(), rank=rank())
    return DataLoader(data, batch_size=8, sampler=sampler, num_workers=2)


class _TellsEpoch(DataLoader[Any]):
    epoch = 0

    def __iter__(self) -> Any:
        cast("DistributedSampler[Any]", self.sampler).set_epoch(self.epoch)
        self.epoch += 1
        return super().__iter__()


def distributed_by_loader() -> DataLoader[Any]:
    """A loader that tells its DistributedSampler each epoch itself; 257 samples, padded evenly."""
    data: Dataset[Any] = _Odd()
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=world(), rank=rank())
    return _TellsEpoch(data, batch_size=8, sampler=sampler, drop_last=True)


class _Odd(Samples):
    count = COUNT + 1

    def __getitem__(self, index: int) -> Tensor:
        return sample(index)


def persistent() -> DataLoader[Any]:
    """Persistent workers, random augmentation, prefetching and shuffling."""
    return DataLoader(
        TorchNoise(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=4
    )


def validation() -> DataLoader[Any]:
    """In order, every epoch the same, as for validation."""
    return DataLoader(Table(), batch_size=16, shuffle=False, num_workers=1)


class _Sharded(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        return (sample(index) for index in range(rank() * workers + number, COUNT, workers * world()))


def sharded_stream() -> DataLoader[Any]:
    """An IterableDataset shared out over workers and ranks."""
    return DataLoader(_Sharded(), batch_size=8, num_workers=2)


class DataModule:
    """As Lightning knows it: `setup`, then `train_dataloader()`."""

    def __init__(self) -> None:
        self.train: Dataset[Any] | None = None

    def prepare_data(self) -> None:
        """Nothing to download."""

    def setup(self, stage: str | None = None) -> None:
        """Makes the dataset, as the trainer asks."""
        del stage
        self.train = TorchNoise()

    def train_dataloader(self) -> DataLoader[Any]:
        """The loader of the training set."""
        if self.train is None:
            self.setup("fit")
        return DataLoader(cast("Dataset[Any]", self.train), batch_size=8, shuffle=True, num_workers=2)


def seeded_by_rank() -> tuple[Dataset[Any], dict[str, Any]]:
    """Seed plus rank for the data, as it should be."""
    torch.manual_seed(42 + rank())
    data = TorchNoise()
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=world(), rank=rank())
    return data, {"batch_size": 8, "num_workers": 2, "sampler": sampler}
