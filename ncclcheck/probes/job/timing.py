"""Times of iterations, and the decisions that all ranks must take alike.

A decision (go on, stop, skip) is only ever taken from numbers that all ranks have exchanged: a rank that went by
its own clock would leave the others waiting.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

from ncclcheck.probes.facts import Times
from ncclcheck.probes.job.operations import barrier

# share of the median within which its confidence interval lies; then no more iterations are needed: chosen
TIGHT = 0.05
# bytes of an exception that all ranks exchange in one tensor of fixed size: chosen, its type and first sentence
_MOST_TEXT = 240


class RankPeers:
    """What the ranks tell each other, as tensors: numbers by maximum, one short text."""

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self.rank, self.world, self.device = rank, world, device

    def worst(self, values: Sequence[float]) -> list[float]:
        """The maximum over ranks of each value."""
        shared = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return [float(value) for value in shared.tolist()]

    def texts(self, mine: str) -> list[str]:
        """A text of each rank, by rank; as bytes, never pickled."""
        letters = mine.encode()
        longest = int(self.worst([float(len(letters))])[0])
        own = torch.tensor(list(letters.ljust(longest, b"\0")), dtype=torch.uint8, device=self.device)
        shared = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(shared, own)
        return [bytes(text.tolist()).rstrip(b"\0").decode(errors="backslashreplace") for text in shared]

    def first_text(self, text: str) -> str:
        """The text of the lowest rank that has one; empty where none has."""
        chosen = self.world - int(self.worst([float(self.world - self.rank) if text else 0.0])[0])
        if chosen == self.world:
            return ""
        letters = text.encode(errors="replace")[:_MOST_TEXT].ljust(_MOST_TEXT, b"\0")
        shared = torch.tensor(list(letters), dtype=torch.uint8, device=self.device)
        dist.broadcast(shared, src=chosen)
        return bytes(shared.tolist()).rstrip(b"\0").decode(errors="ignore")


@dataclass(frozen=True)
class TimeLimits:
    """seconds: the time box. estimate: seconds of one iteration, from the warm-up."""

    seconds: float
    least: int
    most: int
    estimate: float


class Observer(Protocol):
    """What a timing tells of its batches to somebody who watches the process meanwhile."""

    def stalled(self) -> float:
        """Seconds in which this process did not run, so far."""

    def batch(self) -> AbstractContextManager[None]:
        """Context around the iterations of a batch."""

    def add(self, own: Sequence[float], longest: Sequence[float], shortest: Sequence[float]) -> None:
        """Seconds of waiting in each iteration: this rank's, and the longest and shortest of any rank."""


@dataclass(frozen=True)
class TimedBatch:
    """Iterations of one rank, in seconds: of each call, and from barrier to barrier what of it was waiting."""

    calls: list[float]
    waits: list[float]


def measure(
    call: Callable[[], object], limits: TimeLimits, peers: RankPeers, tick: Callable[[], None], observer: Observer
) -> list[float]:
    """Seconds of each iteration, the slowest rank's; until the median is certain or the time box ends."""
    times: list[float] = []
    begin, spent = time.monotonic(), 0.0
    while count := _next_batch(times, spent, limits):
        with observer.batch():
            own = batch(call, count, peers.device, tick, observer.stalled)
        less = [-wait for wait in own.waits]
        worst = peers.worst([time.monotonic() - begin, *own.calls, *own.waits, *less])
        spent, slowest, waits = worst[0], worst[1 : count + 1], worst[count + 1 :]
        observer.add(own.waits, waits[: count - 1], [-wait for wait in waits[count - 1 :]])
        times += slowest
    return times


def _next_batch(times: Sequence[float], spent: float, limits: TimeLimits) -> int:
    left = limits.seconds - spent
    if left <= 0 or limits.most <= 0 or (len(times) >= limits.least and is_tight(times)):
        return 0
    if not times:
        # The warm-up may have been slow for other reasons: one iteration shows it.
        return max(1, min(limits.least, int(left / max(limits.estimate, 1e-7))))
    wanted = max(limits.least - len(times), min(len(times), 64))
    return max(0, min(wanted, int(left * len(times) / spent), limits.most - len(times)))


def _never() -> float:
    return 0.0


def batch(
    call: Callable[[], object],
    count: int,
    device: torch.device,
    tick: Callable[[], None],
    stalled: Callable[[], float] = _never,
) -> TimedBatch:
    """`count` iterations on this rank, each after a barrier, in which the host waits on a GPU as well."""
    timer = _Events(device) if device.type == "cuda" else _Clock()
    marks = []
    for _ in range(count):
        tick()
        came = time.perf_counter()
        barrier(device)
        left, lost = time.perf_counter(), stalled()
        timer.time(call)
        marks.append(_CallTimes(came, left, time.perf_counter(), lost))
    return TimedBatch(timer.seconds(), [_waited(*two) for two in pairwise(marks)])


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, until the device has finished it."""
    timer = _Events(device) if device.type == "cuda" else _Clock()
    timer.time(call)
    return timer.seconds()[0]


class _CallTimes(NamedTuple):
    """When a rank came to the barrier and left it, when its call was over, and how long it had stood still."""

    came: float
    left: float
    over: float
    stalled: float


def _waited(this: _CallTimes, following: _CallTimes) -> float:
    """Seconds in the call and in the barrier after it; not those in which the process did not run."""
    return this.over - this.left + following.left - following.came - (following.stalled - this.stalled)


class _Clock:
    """Times calls by the host's clock."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def time(self, call: Callable[[], object]) -> None:
        begin = time.perf_counter()
        call()
        self._seconds.append(time.perf_counter() - begin)

    def seconds(self) -> list[float]:
        return self._seconds


class _Events:
    """Times calls by events on the GPU, which are read when all is over."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def time(self, call: Callable[[], object]) -> None:
        begin, end = _event(), _event()
        begin.record()
        call()
        end.record()
        self._events.append((begin, end))

    def seconds(self) -> list[float]:
        torch.cuda.synchronize(self._device)
        return [begin.elapsed_time(end) / 1e3 for begin, end in self._events]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def median_interval(ordered: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the median, from order statistics; None below six values.

    The k-th smallest and the k-th largest enclose it unless fewer than k values fell on one side, which is
    binomial: no distribution of the times is assumed.
    """
    count, tail, k = len(ordered), 0, 0
    while k < count and (tail + math.comb(count, k)) * 40 <= 2**count:
        tail += math.comb(count, k)
        k += 1
    return (ordered[k - 1], ordered[count - k]) if k else None


def is_tight(times: Sequence[float]) -> bool:
    """Whether the median's confidence interval is within 5 % of it."""
    ordered = sorted(times)
    interval, median = median_interval(ordered), statistics.median(ordered)
    if interval is None:
        return False
    return median - interval[0] <= TIGHT * median and interval[1] - median <= TIGHT * median


def summary(seconds: Sequence[float]) -> Times:
    """Microseconds; percentiles are the nearest measured value, the median the middle."""
    ordered = [second * 1e6 for second in sorted(seconds)]

    def percentile(share: float) -> float:
        return ordered[math.ceil(share * len(ordered)) - 1]

    low, high = median_interval(ordered) or (None, None)
    return Times(
        p50=statistics.median(ordered),
        p95=percentile(0.95),
        p99=percentile(0.99),
        min=ordered[0],
        max=ordered[-1],
        mean=statistics.fmean(ordered),
        median_low=low,
        median_high=high,
    )
