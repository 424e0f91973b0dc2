"""Samples read again and again, or never read before, for what reading costs: nothing is looked at in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ncclcheck.probes.dataloader import ours
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.indices import chosen
from ncclcheck.probes.dataloader.samples.read.glance import SampleSource

Run = Callable[[], None]

_MOST = 64  # samples that are read again and again: chosen, some workers' batches
_SALT = 0  # of every start of a stream: its samples are the same ones


class ReadSamples:
    """Samples of a dataset, or of the beginning of a stream. What single ones raise is for others to report."""

    def __init__(self, made: FactoryLoader, seed: int) -> None:
        self._source, self._iterable, self._length = SampleSource(made), made.iterable, made.length or 0
        self._indices: Sequence[int] = range(_MOST) if made.iterable else chosen(made, _MOST, seed)

    @property
    def count(self) -> int:
        """How many a pass reads."""
        return len(self._indices)

    def warm_up(self, seconds: float) -> float:
        """Seconds of a read. What does not fit into `seconds` is left out. Raises what the first raises."""
        if not self._indices:
            raise ValueError("the dataset is empty")
        if not self._iterable:
            self._source.read(
                self._indices[0]
            )  # raised here; and its own start costs the reads that count nothing
        self._source.begin(_SALT)
        begin, done = time.perf_counter(), 0
        for index in self._indices:
            self._read(index)
            if self._source.ended:
                break
            done += 1
            if done > 1 and time.perf_counter() - begin > seconds:
                break
        self._indices = self._indices[: max(1, done)]
        return (time.perf_counter() - begin) / self.count

    def again(self) -> None:
        """Read the same samples once more."""
        self._source.begin(_SALT)
        self._run(self._indices)

    def timed(self) -> dict[int, float]:
        """The same again: seconds of each by its index, or by its place in the stream."""
        self._source.begin(_SALT)
        return {index: _seconds(partial(self._read, index)) for index in self._indices}

    def fresh(self, runs: int, reads: int) -> Iterator[Run]:
        """So many runs of so many samples not read before: spread over a dataset, the next ones of a stream."""
        self._source.begin(_SALT)
        for number in range(runs):
            start = 0 if self._iterable else self._length * number // runs + 1
            end = reads if self._iterable else min(start + reads, self._length)
            yield partial(self._run, range(start, end))

    def _run(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._read(index)
            if self._source.ended:
                return

    def _read(self, index: int) -> None:
        try:
            self._source.read(index)
        except Exception as error:
            if self._iterable:  # nothing comes after it
                raise
            ours.pass_on(error)


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
