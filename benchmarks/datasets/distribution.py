"""Defects of sharing the samples out: over workers, ranks, nodes and epochs."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info, random_split
from torch.utils.data.distributed import DistributedSampler

from benchmarks.datasets.material import COUNT, Samples, decoded, encoded, folder, rank, sample, scattered, world
from benchmarks.datasets.shapes import Plain


def no_distributed_sampler() -> DataLoader[Any]:
    """A loader for one process, on every rank."""
    return DataLoader(Plain(), batch_size=8, shuffle=True, num_workers=2)


def rank_of_node() -> DataLoader[Any]:
    """The local rank where the rank belongs: all nodes read the same part."""
    data = Plain()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return DataLoader(data, batch_size=8, sampler=DistributedSampler(data, num_replicas=world(), rank=local))


def always_rank_zero() -> DataLoader[Any]:
    """`rank=0` left over from a trial."""
    data = Plain()
    return DataLoader(data, batch_size=8, sampler=DistributedSampler(data, num_replicas=world(), rank=0))


def eight_replicas() -> DataLoader[Any]:
    """Written for eight GPUs: with fewer, most samples are never read."""
    data = Plain()
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=max(8, world()), rank=rank())
    return DataLoader(data, batch_size=8, sampler=sampler)


class OverlappingShards(Samples):
    """Each rank's shard reaches into the next."""

    def __init__(self) -> None:
        self.each = COUNT // world()
        self.start = self.each * rank()
        self.count = min(self.each + 24, COUNT - self.start)

    def __getitem__(self, index: int) -> Tensor:
        return sample(self.start + index)


class UnshardedStream(IterableDataset[Tensor]):
    """Every worker gives the whole stream."""

    def __iter__(self) -> Iterator[Tensor]:
        return (sample(index) for index in range(COUNT))


def unsharded_stream() -> DataLoader[Any]:
    """Two workers: every sample twice."""
    return DataLoader(UnshardedStream(), batch_size=8, num_workers=2)


class ShardedByWorker(IterableDataset[Tensor]):
    """Shared out over workers; every rank gives all."""

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        return (sample(index) for index in range(number, COUNT, workers))


def sharded_by_worker_only() -> DataLoader[Any]:
    """Ranks were forgotten."""
    return DataLoader(ShardedByWorker(), batch_size=8, num_workers=2)


class ShardedByRank(IterableDataset[Tensor]):
    """Shared out over ranks; every worker gives the rank's whole part."""

    def __iter__(self) -> Iterator[Tensor]:
        return (sample(index) for index in range(rank(), COUNT, world()))


def sharded_by_rank_only() -> DataLoader[Any]:
    """Workers were forgotten."""
    return DataLoader(ShardedByRank(), batch_size=8, num_workers=2)


class _FixedOrder(Sampler[int]):
    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(range(rank(), self.count, world()))

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(0)).tolist()
        return iter(order[rank() : self.count // world() * world() : world()])


def epoch_ignored() -> DataLoader[Any]:
    """A shuffling sampler that takes the epoch and does not use it."""
    data = Plain()
    return DataLoader(data, batch_size=8, sampler=_FixedOrder(len(data)), num_workers=2)


class _KeepsEpoch(DataLoader[Any]):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        self.set_epoch(self.epoch + 1)
        return super().__iter__()


def epoch_kept_by_loader() -> DataLoader[Any]:
    """The loader counts epochs but never tells its DistributedSampler."""
    data = Plain()
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=world(), rank=rank(), shuffle=True)
    return _KeepsEpoch(data, batch_size=8, sampler=sampler)


def shuffled_once() -> DataLoader[Any]:
    """The order is drawn in the factory: every epoch the same."""
    data = Plain()
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1)).tolist()
    return DataLoader(data, batch_size=8, sampler=order[rank() :: world()])


class _Uneven(Samples):
    def __init__(self) -> None:
        self.indices = list(range(rank(), COUNT + 1, world()))
        self.count = len(self.indices)

    def __getitem__(self, index: int) -> Tensor:
        return sample(self.indices[index])


def uneven_batches() -> DataLoader[Any]:
    """257 samples shared out by slicing: rank 0 has a batch more, at which the others hang."""
    return DataLoader(_Uneven(), batch_size=1 if world() == 1 else 128 // world())


class UnevenStream(IterableDataset[Tensor]):
    """Each rank drops what is too short for it: the batches differ in number."""

    def __iter__(self) -> Iterator[Tensor]:
        mine = range(rank(), COUNT, world())
        return (sample(index) for index in mine if index % (3 + rank()) != 0)


def uneven_stream() -> DataLoader[Any]:
    """Filtered by rank, batches of four."""
    return DataLoader(UnevenStream(), batch_size=4)


class _Listed(Samples):
    files: list[Path]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        return decoded(self.files[index].read_bytes())


def _downloaded(count: int = COUNT) -> Path:
    """A folder whose files came in any order, as from a parallel download."""
    root = folder()
    for moment, index in enumerate(random.SystemRandom().sample(range(count), count)):
        path = root / f"{index:06d}.bin"
        path.write_bytes(encoded(index))
        os.utime(path, (moment, moment))
    return root


class SetOfNames(_Listed):
    """Names through a set: another order in every interpreter."""

    def __init__(self) -> None:
        root = scattered()[0].parent
        self.files = [root / name for name in {path.name for path in root.iterdir()}]


class OrderOfDownload(_Listed):
    """Sorted by the time of writing, which is each node's own."""

    def __init__(self) -> None:
        self.files = sorted(_downloaded().iterdir(), key=os.path.getmtime)


class UnsortedListing(_Listed):
    """`os.listdir` as the file system gives it."""

    def __init__(self) -> None:
        root = _downloaded()
        self.files = [root / name for name in os.listdir(root)]


class ShuffledAtStart(_Listed):
    """`random.shuffle` without a seed, on every rank for itself."""

    def __init__(self) -> None:
        self.files = scattered()
        random.shuffle(self.files)


def split_without_seed() -> Dataset[Any]:
    """`random_split` without a generator: every rank trains on another part."""
    train, _ = random_split(Plain(), [200, 56])
    return train


class WhatHasArrived(_Listed):
    """Lists what this node has so far: the nodes differ in length."""

    def __init__(self) -> None:
        missing = random.SystemRandom().randrange(1, 100)
        self.files = scattered()[:-missing]
