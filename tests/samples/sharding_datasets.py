"""Factories for test_data_sharding.py, called on emulated ranks."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler


class Numbers(Dataset[Any]):
    """Sample i holds i; with noise it draws from torch's generator as well."""

    def __init__(self, count: int = 101, *, noise: bool = False) -> None:
        self.count, self.noise = count, noise

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((4,), index) + (torch.rand(4) if self.noise else 0), "y": index % 10}


def alone() -> Dataset[Any]:
    return Numbers()


def plain() -> DataLoader[Any]:
    return DataLoader(Numbers(), batch_size=8, shuffle=True)


def shared_out() -> DataLoader[Any]:
    data = Numbers()
    return DataLoader(data, batch_size=8, sampler=DistributedSampler(data))


def seeded_by_rank(rank: int, world_size: int) -> DataLoader[Any]:
    data = Numbers(noise=True)
    torch.manual_seed(5 + rank)
    sampler: Sampler[Any] = DistributedSampler(data, world_size, rank, drop_last=True)
    return DataLoader(data, batch_size=8, sampler=sampler, drop_last=True, num_workers=1)


def seeded_alike() -> DataLoader[Any]:
    data = Numbers(noise=True)
    torch.manual_seed(5)
    return DataLoader(data, batch_size=8, sampler=DistributedSampler(data), num_workers=1)


def rank_0_everywhere() -> DataLoader[Any]:
    data = Numbers()
    return DataLoader(data, batch_size=8, sampler=DistributedSampler(data, 2, 0))


class Uneven(Sampler[int]):
    """Its order is the same in every epoch, and rank 0 has more."""

    def __iter__(self) -> Iterator[int]:
        order = random.Random(1).sample(range(101), 101)
        return iter(order[:61] if os.environ["RANK"] == "0" else order[61:])


def uneven() -> DataLoader[Any]:
    return DataLoader(Numbers(), batch_size=8, sampler=Uneven())


class OwnOrder(Sampler[int]):
    """The rank's part of a permutation; without a seed that all ranks share each draws one of its own."""

    def __init__(self, seed: int | None) -> None:
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 101 // int(os.environ["WORLD_SIZE"])

    def __iter__(self) -> Iterator[int]:
        drawn = random.Random() if self.seed is None else random.Random(self.seed + self.epoch)
        begin = int(os.environ["RANK"]) * len(self)
        return iter(drawn.sample(range(101), 101)[begin : begin + len(self)])


def own_orders() -> DataLoader[Any]:
    return DataLoader(Numbers(), batch_size=8, sampler=OwnOrder(None))


class GoesOn(OwnOrder):
    """From the middle of an epoch, as a run that was interrupted does; the next epochs are whole."""

    def __init__(self) -> None:
        super().__init__(0)
        self.skipped = 20

    def __iter__(self) -> Iterator[int]:
        skipped, self.skipped = self.skipped, 0
        return iter([*super().__iter__()][skipped:])


def goes_on() -> DataLoader[Any]:
    return DataLoader(Numbers(), batch_size=8, sampler=GoesOn())


def not_one_batch() -> DataLoader[Any]:
    data = Numbers()
    sampler: Any = DistributedSampler(data, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
    return DataLoader(data, batch_size=512, drop_last=True, sampler=sampler)


def one_order() -> DataLoader[Any]:
    return DataLoader(Numbers(), batch_size=8, sampler=OwnOrder(0))


class Parts(IterableDataset[int]):
    """A part of the numbers for each rank, which it is told by this variable."""

    def __init__(self, variable: str) -> None:
        self.rank, self.world = int(os.environ[variable]), int(os.environ["WORLD_SIZE"])

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(self.rank * workers + worker, 400, self.world * workers))


def by_local_rank() -> Parts:
    return Parts("LOCAL_RANK")


def by_rank() -> Parts:
    return Parts("RANK")


def part_of_each_rank() -> DataLoader[Any]:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return DataLoader(Subset(Numbers(), range(rank, 101, world)), batch_size=8, shuffle=True)


def _cut(kept: list[int]) -> DataLoader[Any]:
    return DataLoader(Named([str(number) for number in kept]), batch_size=8, shuffle=True)


def left_out_after_the_part() -> DataLoader[Any]:
    """Each rank leaves out of its part what is too long."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return _cut([number for number in range(160)[rank::world] if number % 4 != 1])


def left_out_before_the_part() -> DataLoader[Any]:
    """The printed fix."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rows = [number for number in range(160) if number % 4 != 1]
    rows = rows[: len(rows) // world * world]
    return _cut(rows[rank::world])


class Advancing(DataLoader[Any]):
    """It tells the sampler its epoch itself."""

    epoch = 0

    def __iter__(self) -> Any:
        self.sampler.set_epoch(self.epoch)  # type: ignore[attr-defined]
        self.epoch += 1
        return super().__iter__()


class Forgetful(DataLoader[Any]):
    """It keeps the epoch for itself."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def tells_its_sampler() -> DataLoader[Any]:
    data = Numbers()
    return Advancing(data, batch_size=8, sampler=DistributedSampler(data), num_workers=1)


def keeps_the_epoch() -> DataLoader[Any]:
    data = Numbers()
    return Forgetful(data, batch_size=8, sampler=DistributedSampler(data))


class Named(Dataset[str]):
    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> str:
        return self.names[index]


def from_a_set() -> Dataset[str]:
    return Named(list({f"name {number}" for number in range(50)}))


def from_a_sorted_set() -> Dataset[str]:
    return Named(sorted({f"name {number}" for number in range(50)}))


def shuffled_without_a_seed() -> Dataset[Any]:
    return Subset(Numbers(), random.sample(range(101), 101))


def from_a_listing() -> Dataset[str]:
    return Named(os.listdir(os.path.dirname(os.__file__)))


def fails_on_rank_1() -> Dataset[Any]:
    return Named([str(number) for number in range([5, 0][int(os.environ["RANK"])] or int("none"))])


def short_of_memory_on_rank_1() -> Dataset[Any]:
    if os.environ["RANK"] == "1":
        raise MemoryError
    return Numbers()


def stands_still_on_rank_1() -> Dataset[Any]:
    if os.environ["RANK"] == "1":
        threading.Event().wait()
    return Numbers()


def fails_once_on_rank_1() -> Dataset[Any]:
    """As a connection does that is refused for a moment."""
    once = Path(__file__).with_name("once")
    if os.environ["RANK"] == "1" and not once.exists():
        once.touch()
        raise KeyError("manifest")
    return Numbers()


def from_a_set_on_each_rank() -> DataLoader[Any]:
    """A split by names out of a set; the rank is asked for, as Lightning does."""
    names = [*{f"name{number}" for number in range(60)}]
    random.Random(int(os.environ["RANK"]) * 0 + 42).shuffle(names)
    kept = {*names[:40]}
    return DataLoader(Named([str(number) for number in range(240) if f"name{number % 60}" in kept]), batch_size=8)


class Stream(IterableDataset[Any]):
    """Numbers, shared out as `mode` says; with `end` 0 it has none."""

    def __init__(self, mode: str, end: int = 120) -> None:
        self.mode, self.end = mode, end

    def __iter__(self) -> Iterator[Any]:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        start, step = {
            "none": (0, 1),
            "worker": (worker, workers),
            "rank": (rank, world),
            "both": (rank * workers + worker, world * workers),
        }[self.mode]
        number = start
        while not self.end or number < self.end:
            yield torch.tensor(number), torch.rand(2)
            number += step


def stream_of_all() -> IterableDataset[Any]:
    return Stream("none")


def stream_by_worker() -> DataLoader[Any]:
    return DataLoader(Stream("worker"), batch_size=8, num_workers=2)


def stream_by_rank() -> DataLoader[Any]:
    return DataLoader(Stream("rank"), batch_size=8, num_workers=2)


def stream_by_both() -> DataLoader[Any]:
    return DataLoader(Stream("both"), batch_size=8, num_workers=2)


class Shards(IterableDataset[Any]):
    """A list of parts in an order that a seed gives, or none; each rank takes every world-th."""

    def __init__(self, seed: int | None) -> None:
        self.parts = [*range(24)]
        if seed is None:
            random.shuffle(self.parts)
        else:
            random.Random(seed).shuffle(self.parts)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, of = (worker.id, worker.num_workers) if worker else (0, 1)
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        for part in self.parts[rank::world][number::of]:
            yield from (torch.tensor(part * 100 + row) for row in range(10))


class ShardsOfEpoch(Shards):
    """Shuffled in each epoch by the dice of who reads: each worker takes its part of an order of its own."""

    def __init__(self, seed: int | None) -> None:
        super().__init__(0)
        self.seed = seed

    def __iter__(self) -> Iterator[Any]:
        (random if self.seed is None else random.Random(self.seed)).shuffle(self.parts)
        return super().__iter__()


def shards_by_own_dice() -> DataLoader[Any]:
    return DataLoader(ShardsOfEpoch(None), batch_size=4, num_workers=2)


def shards_by_one_seed() -> DataLoader[Any]:
    return DataLoader(ShardsOfEpoch(0), batch_size=4, num_workers=2)


def shards_in_own_orders() -> DataLoader[Any]:
    return DataLoader(Shards(None), batch_size=4, num_workers=2)


def shards_in_one_order() -> DataLoader[Any]:
    return DataLoader(Shards(0), batch_size=4, num_workers=2)


def stream_without_an_end() -> IterableDataset[Any]:
    return Stream("both", end=0)


def _weighted(seed: int) -> DataLoader[Any]:
    numbers = Numbers()
    weights = [1.0 + index % 3 for index in range(len(numbers))]
    sampler = WeightedRandomSampler(weights, len(numbers) // 2, generator=torch.Generator().manual_seed(seed))
    return DataLoader(numbers, batch_size=4, sampler=sampler)


def weighted_alike() -> DataLoader[Any]:
    """All ranks draw from one seed."""
    return _weighted(0)


def weighted_by_rank() -> DataLoader[Any]:
    """Each rank draws for itself."""
    return _weighted(int(os.environ["RANK"]))


class Balanced(Sampler[int]):
    """Draws for all ranks from one seed; each takes its part, or all take the same."""

    def __init__(self, numbers: Dataset[Any], *, apart: bool) -> None:
        self.size, self.apart, self.epoch = len(numbers), apart, 0  # type: ignore[arg-type]
        self.world, self.rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size // self.world

    def __iter__(self) -> Iterator[int]:
        own = torch.Generator().manual_seed(self.epoch)
        indices = torch.randint(self.size, (len(self) * self.world,), generator=own).tolist()
        return iter(indices[self.rank :: self.world] if self.apart else indices[: len(self)])


def balanced_alike() -> DataLoader[Any]:
    """Every rank takes the first part."""
    numbers = Numbers()
    return DataLoader(numbers, batch_size=4, sampler=Balanced(numbers, apart=False))


def balanced() -> DataLoader[Any]:
    """Every rank takes its own."""
    numbers = Numbers()
    return DataLoader(numbers, batch_size=4, sampler=Balanced(numbers, apart=True))
