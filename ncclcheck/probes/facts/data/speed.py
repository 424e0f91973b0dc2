"""Samples a second by number of workers."""

from __future__ import annotations

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Whole


class Point(Struct, frozen=True, kw_only=True):
    """One setting of the loader, measured warm. low, high: samples a second of the slowest and the fastest quarter
    of the time. start_s: from `iter(loader)` to the first batch. prefetch: 0 where there are no workers. to_gpu:
    batches were copied to the GPU too, from pinned memory or not.
    """

    workers: Count
    prefetch: Count = 0
    to_gpu: bool = False
    pinned: bool = False
    samples: Whole
    seconds: Amount
    samples_s: Amount
    low: Amount
    high: Amount
    start_s: Amount = 0.0


class Missed(Struct, frozen=True, kw_only=True):
    """A setting that gave no number, and why."""

    workers: Count
    why: str


class Slowest(Struct, frozen=True, kw_only=True):
    """The sample that took longest, the second time that it was read, beside the median of those read."""

    index: Whole
    seconds: Amount
    median_s: Amount


class Held(Struct, frozen=True, kw_only=True):
    """A lock that workers share, `self.lock` or the path of a file, and for which share of a read it is held."""

    lock: str
    share: Amount


class Speed(Struct, frozen=True, kw_only=True):
    """Samples a second by number of workers; the loader's own settings, and what is needed.

    workers, prefetch, persistent: of the loader, null where it does not say. batch: samples a batch while it was
    measured. need: samples a second that the GPU of one rank takes, 0 where nobody said. cores: of one rank.
    distinct: samples read again and again, so that their files are in memory. each_s: seconds of a read, the
    median. held: locks that workers share.
    """

    points: list[Point] = field(default_factory=list)
    missed: list[Missed] = field(default_factory=list)
    workers: Count | None = None
    prefetch: Count | None = None
    persistent: bool | None = None
    start_method: str = ""
    batch: Count = 0
    distinct: Count = 0
    need: Amount = 0.0
    cores: Amount = 1.0
    length: Whole | None = None
    slowest: Slowest | None = None
    each_s: Amount = 0.0
    held: list[Held] = field(default_factory=list)
