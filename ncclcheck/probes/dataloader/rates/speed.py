"""Samples a second by number of workers, each measured by a real DataLoader in a child of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import Any

import torch
from msgspec import Struct

from ncclcheck.probes.dataloader.children import child
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.rates import pace
from ncclcheck.probes.dataloader.rates.held import Locks
from ncclcheck.probes.dataloader.rates.pace import PaceSetting, PaceWork
from ncclcheck.probes.dataloader.rates.resources import cores, start_method
from ncclcheck.probes.dataloader.samples.read.reading import ReadSamples
from ncclcheck.probes.facts.data.speed import Held, Missed, Point, Slowest, Speed
from ncclcheck.probes.job.context import DataPlan

_POINT_S = 0.2  # of a fast dataset
_BATCHES = 12  # that a worker should make in the time of a point
_BATCH = 32  # where nobody says
_START_S = 5.0  # of workers; what takes longer is told so
_SLOW, _SLOW_S = 20, 0.05  # times the median, seconds: such a sample would decide what its point shows
_MOST_ASKED = 4  # times the cores; more workers than that are not started


class _Warm(Struct, frozen=True, kw_only=True):
    """The samples that all points read, now in memory; indices: none of a stream."""

    each_s: float
    count: int
    indices: list[int]
    slowest: Slowest | None
    method: str
    gpu: bool
    locks: list[Held]


@dataclass
class _Curve:
    """The points so far, and the time that is left."""

    made: FactoryLoader
    work: PaceWork
    end: float
    points: list[Point] = field(default_factory=list)
    missed: list[Missed] = field(default_factory=list)

    def measure(self, setting: PaceSetting) -> None:
        """A point, or why there is none."""
        left = self.end - time.monotonic()
        if left < 2 * self.work.seconds:
            self.missed.append(Missed(workers=setting.workers, why="the time was over"))
            return
        limit = min(left, 4 * self.work.seconds + _START_S)
        ended = child.run(lambda: pace.point(self.made, setting, self.work), Point, limit)
        if ended.value is None:
            self.missed.append(Missed(workers=setting.workers, why=_first_line(ended.how)))
        else:
            self.points.append(ended.value)


def look(made: FactoryLoader, plan: DataPlan, limit: float) -> Speed:
    """The fewest workers first; then what may make the best of them better."""
    end = time.monotonic() + limit
    mine = max(1.0, cores() / max(1, plan.ranks_per_node))
    warm = child.run(lambda: _warm(made, plan.seed, limit / 8), _Warm, limit / 2)
    if warm.value is None:
        return _told(
            made,
            plan,
            mine,
            None,
            _Curve(made, PaceWork([], 0, 0), end, missed=[Missed(workers=0, why=_first_line(warm.how))]),
        )
    curve = _Curve(made, _work(made, warm.value, limit), end)
    for workers in _numbers(int(mine), made.loader.get("num_workers")):
        curve.measure(PaceSetting(workers))
    _refine(curve, gpu=warm.value.gpu)
    return _told(made, plan, mine, warm.value, curve)


def _first_line(how: str) -> str:
    return how.partition("\n")[0][:300]


def _warm(made: FactoryLoader, seed: int, seconds: float) -> _Warm:
    """Read them, then once more with a clock: the first time may come from the disk."""
    samples = ReadSamples(made, seed)
    samples.warm_up(seconds)
    locks = Locks(made.dataset)
    with locks.watched():
        times = samples.timed()
    middle = median(times.values())
    worst = max(times, key=lambda index: times[index])
    usual = [index for index, taken in times.items() if taken <= max(_SLOW_S, _SLOW * middle)]
    return _Warm(
        each_s=middle,
        count=len(usual),
        indices=[] if made.iterable else usual,
        slowest=None if made.iterable else Slowest(index=worst, seconds=times[worst], median_s=middle),
        method=start_method(made)[0],
        gpu=torch.cuda.is_available(),
        locks=locks.share(sum(times.values())),
    )


def _work(made: FactoryLoader, warm: _Warm, limit: float) -> PaceWork:
    """Batches small enough that a worker makes several in the time of a point."""
    asked = made.loader.get("batch_size", _BATCH)
    point_s = min(max(_POINT_S, _BATCHES * warm.each_s), limit / 8)
    items: list[Any] = warm.indices
    if asked is None:
        sampler = made.loader.get("sampler")  # it may give lists of indices
        return PaceWork(items if sampler is None else list(islice(sampler, warm.count)), 0, point_s)
    most = int(point_s / _BATCHES / max(warm.each_s, 1e-7))
    return PaceWork(items, max(1, min(int(asked), most)), point_s)


def _numbers(most: int, asked: int | None) -> list[int]:
    """0, 1, 2, 4 ... up to the cores of this rank, and what the loader asks for."""
    doubled = [2**power for power in range(20) if 2**power <= most]
    own = [asked] if asked is not None and asked <= _MOST_ASKED * most else []
    return sorted({0, *doubled, most, *own})


def _refine(curve: _Curve, *, gpu: bool) -> None:
    """With the best number of workers: twice as much prefetched, and pinned memory where there is a GPU."""
    if not curve.points:
        return
    best = max(curve.points, key=lambda point: point.samples_s)
    if best.workers:
        curve.measure(PaceSetting(best.workers, prefetch=2 * best.prefetch))
    for pinned in (False, True) if gpu else ():
        curve.measure(PaceSetting(best.workers, to_gpu=True, pinned=pinned))


def _told(made: FactoryLoader, plan: DataPlan, mine: float, warm: _Warm | None, curve: _Curve) -> Speed:
    return Speed(
        points=curve.points,
        missed=curve.missed,
        workers=made.loader.get("num_workers"),
        prefetch=made.loader.get("prefetch_factor"),
        persistent=made.loader.get("persistent_workers"),
        start_method=warm.method if warm else "",
        batch=curve.work.batch,
        distinct=warm.count if warm else 0,
        need=plan.need,
        cores=mine,
        length=made.length,
        slowest=warm.slowest if warm else None,
        each_s=warm.each_s if warm else 0.0,
        held=warm.locks if warm else [],
    )
