"""Samples read again and again, or never read before: from a dataset with an index, or from a stream."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Protocol

from ncclcheck.probes.dataloader import ours
from ncclcheck.probes.dataloader.factory import Made
from ncclcheck.probes.dataloader.indices import chosen

Run = Callable[[], None]

_MOST = 64  # samples that are read again and again


class Reader(Protocol):
    """Both kinds of datasets. What single samples raise is for others to tell."""

    count: int

    def warm_up(self, seconds: float) -> float:
        """Seconds of a read. What does not fit into `seconds` is left out. Raises what the first raises."""

    def again(self) -> None:
        """Read the same `count` samples once more."""

    def timed(self) -> dict[int, float]:
        """The same again: seconds of each by its index, or by its place in the stream."""

    def fresh(self, runs: int, reads: int) -> Iterator[Run]:
        """So many runs of so many samples that were not read before."""


class Samples:
    """A dataset with an index; its fresh runs are spread over it."""

    def __init__(self, made: Made, seed: int) -> None:
        self._dataset = made.dataset
        self._length = made.length or 0
        self._indices = chosen(made, _MOST, seed)
        self.count = len(self._indices)

    def warm_up(self, seconds: float) -> float:
        """The first is read twice, so that what it raises is raised, and its own start costs nothing."""
        if not self._indices:
            raise ValueError("the dataset is empty")
        self._dataset[self._indices[0]]
        self.count, each = _timed(self._read, self._indices, seconds)
        self._indices = self._indices[: self.count]
        return each

    def again(self) -> None:
        for index in self._indices:
            self._read(index)

    def timed(self) -> dict[int, float]:
        return {index: _seconds(partial(self._read, index)) for index in self._indices}

    def fresh(self, runs: int, reads: int) -> Iterator[Run]:
        for number in range(runs):
            start = self._length * number // runs + 1
            yield partial(self._run, start, min(start + reads, self._length))

    def _run(self, start: int, end: int) -> None:
        for index in range(start, end):
            self._read(index)

    def _read(self, index: int) -> None:
        try:
            self._dataset[index]
        except Exception as error:
            ours.pass_on(error)


class Stream:
    """An IterableDataset; its fresh samples are those that come next."""

    def __init__(self, made: Made) -> None:
        self._dataset = made.dataset
        self._next: Iterator[Any] = iter(())
        self.count = _MOST

    def warm_up(self, seconds: float) -> float:
        """A stream with fewer samples than a pass has a shorter pass."""
        items = iter(self._dataset)
        self.count, each = _timed(lambda _: next(items), range(self.count), seconds)
        return each

    def again(self) -> None:
        for _ in islice(iter(self._dataset), self.count):
            pass

    def timed(self) -> dict[int, float]:
        items = iter(self._dataset)
        return {place: _seconds(partial(next, items, None)) for place in range(self.count)}

    def fresh(self, runs: int, reads: int) -> Iterator[Run]:
        self._next = iter(self._dataset)
        for _ in range(runs):
            yield partial(self._run, reads)

    def _run(self, reads: int) -> None:
        for _ in islice(self._next, reads):
            pass


def reader(made: Made, seed: int) -> Samples | Stream:
    return Stream(made) if made.iterable else Samples(made, seed)


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _timed(read: Callable[[int], object], items: Any, seconds: float) -> tuple[int, float]:
    """How many were read before the time or the items were over, two at least, and seconds of each."""
    begin = time.perf_counter()
    done = 0
    with contextlib.suppress(StopIteration):
        for item in items:
            read(item)
            done += 1
            if done > 1 and time.perf_counter() - begin > seconds:
                break
    return max(1, done), (time.perf_counter() - begin) / max(1, done)
