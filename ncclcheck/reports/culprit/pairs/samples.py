"""Exchanges between nodes -> how much slower each way is than a healthy one, and how sure a number can be."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import median

from ncclcheck.probes.facts import PairTime

DEAD = 20.0  # slowness, a natural logarithm (5e8 times slower): stands for a path on which nothing arrived
PERCENT = 88.0  # % of the healthy bandwidth below which a path is slow, where noise allows it; chosen
_BURST = 0.01  # share of measurements that a burst of other traffic slows down (see repeats); chosen
_CHANCE = 0.005  # runs of a healthy cluster that may name somebody: one of two hundred; chosen
_LOWER_QUARTER = 0.3186 * math.sqrt(2)
_UPPER_QUARTER = 0.647  # standard deviations between the 1/16 and 3/16 upper quantiles of a normal distribution
_UPPER = 1.15  # standard deviations from the median to the 1/8 upper quantile, the middle of the best quarter
_SURE = 7  # spreads, as _SPREADS of alone.py: a measured spread can be half of the true one
Ends = tuple[str, str]
Heard = Counter[tuple[str, str, int | None]]


@dataclass(frozen=True, eq=False)  # none is there twice: compared and hashed, hundreds of times, as itself
class OneWay:
    """One direction between two nodes on one rail.

    slowness: the logarithm of healthy over measured bandwidth, of its best measurement: a fault stays, a burst
    passes. times: how often it was measured.
    """

    source: str
    target: str
    rail: int
    slowness: float
    times: int

    @property
    def is_dead(self) -> bool:
        """Whether no measurement of this path brought anything."""
        return self.slowness >= DEAD


def ends_of(way: OneWay) -> Ends:
    """The two nodes of a way, in the order of their names."""
    return (way.source, way.target) if way.source < way.target else (way.target, way.source)


@dataclass(frozen=True)
class PairSamples:
    """All ways. healthy_gb_s: what a way without a fault carries; noise: the spread of one logarithm.

    seen_noise: the part of it that was measured here, from few exchanges; the rest is assumed.
    """

    ways: tuple[OneWay, ...]
    healthy_gb_s: float
    noise: float
    percent: float = PERCENT
    seen_noise: float = 0.0

    @cached_property
    def floor(self) -> float:
        """The least slowness (a logarithm of bandwidths) that is worth telling."""
        return slowness_at(self.percent)

    def least(self, measurements: int) -> float:
        """What the median of so many measurements must reach to be no accident: four times its own spread."""
        return max(self.floor, 4 * self.noise / math.sqrt(max(1, measurements)))

    def proven(self, measurements: int) -> float:
        """What must be reached to name somebody: more, for a measured spread can be half of the true one."""
        return max(self.least(measurements), _SURE * self.seen_noise / math.sqrt(max(1, measurements)))

    @cached_property
    def names(self) -> list[str]:
        """The nodes that were measured."""
        return sorted({way.source for way in self.ways} | {way.target for way in self.ways})

    @cached_property
    def rails(self) -> list[int]:
        """The rails that were measured."""
        return sorted({way.rail for way in self.ways})

    @cached_property
    def between(self) -> dict[Ends, list[OneWay]]:
        """All ways of each pair."""
        by_pair: dict[Ends, list[OneWay]] = {}
        for way in self.ways:
            by_pair.setdefault(ends_of(way), []).append(way)
        return by_pair


def counted(ways: Iterable[OneWay]) -> Heard:
    """How many ways each node has `out` and `in`, on each rail and on all (None)."""
    rails = ((way, rail) for way in ways for rail in (way.rail, None))
    ends = (((way.source, "out", rail), (way.target, "in", rail)) for way, rail in rails)
    return Counter(chain.from_iterable(ends))


def slowness_at(percent: float) -> float:
    """How slow it is to reach so many percent of healthy; thresholds of sites are held between 1 and 99."""
    return -math.log(min(99.0, max(1.0, percent)) / 100)


def repeats(places: int) -> int:
    """How often one of so many places must be slow, and never fast, before it is named.

    A burst hits about one measurement in a hundred. Among thousands of places some are hit twice: with so many
    repeats, a cluster without a fault names somebody in one run of two hundred at most.
    """
    return max(2, math.ceil(math.log(max(1, places) / _CHANCE) / -math.log(_BURST)))


def read(pairs: Sequence[PairTime], percent: float = PERCENT, usual_noise: float = 0.0) -> PairSamples:
    """The ways of what was measured so far; pairs that are too slow for large pieces come with smaller ones.

    usual_noise: the spread is taken for at least this: that of few measurements can be small by accident.
    """
    largest = max((pair.bytes for pair in pairs), default=0)
    by_way: dict[tuple[str, str, int], list[float]] = {}
    for pair in pairs:
        if pair.a != pair.b:
            for source, target, speed in _directions(pair):
                by_way.setdefault((source, target, pair.rail), []).append(speed)
    best = sorted((speed for speeds in by_way.values() if (speed := max(speeds)) > -math.inf), reverse=True)
    seen = min(_noise(pair for pair in pairs if pair.bytes == largest), _spread(best))
    top = _healthy(best, seen)
    ways = (OneWay(*key, _slowness(top, max(speeds)), len(speeds)) for key, speeds in by_way.items())
    return PairSamples(tuple(ways), math.exp(top) if top > -DEAD else 0.0, max(usual_noise, seen), percent, seen)


def _directions(pair: PairTime) -> Iterable[tuple[str, str, float]]:
    """Both directions with the logarithm of their speed; one that failed carries nothing."""
    for source, target, speed in ((pair.a, pair.b, pair.a_to_b_gb_s), (pair.b, pair.a, pair.b_to_a_gb_s)):
        if speed is not None and speed > 0:
            yield source, target, math.log(speed)
        elif pair.state != "ok" or speed is not None:
            yield source, target, -math.inf


def _slowness(top: float, speed: float) -> float:
    return DEAD if speed == -math.inf else min(top - speed, DEAD - 1)


def _noise(pairs: Iterable[PairTime]) -> float:
    """From the two directions of each exchange, which differ by noise alone where no fault has one direction.

    Their lower quarter is asked: of three nodes, one bad sender makes two exchanges of three differ. Of each pair
    the first exchange alone: those that look bad are repeated, and would outvote the others.
    """
    first: dict[tuple[str, str, int], PairTime] = {}
    for pair in pairs:
        first.setdefault((min(pair.a, pair.b), max(pair.a, pair.b), pair.rail), pair)
    both = ((pair.a_to_b_gb_s, pair.b_to_a_gb_s) for pair in first.values())
    apart = sorted(abs(math.log(out) - math.log(into)) for out, into in both if out and into)
    return apart[len(apart) // 4] / _LOWER_QUARTER if apart else 0.0


def _spread(best: list[float]) -> float:
    """From the upper quarter of all speeds, where the healthy ones are; only where there are many."""
    quarter = len(best) // 4
    return (best[quarter // 4] - best[3 * quarter // 4]) / _UPPER_QUARTER if quarter >= 16 else math.inf


def _healthy(best: list[float], noise: float) -> float:
    """The middle of the upper quarter, less what noise lifts it: right even where three of four ways are slow."""
    if not best:
        return -DEAD
    return median(best[: max(2, len(best) // 4)]) - _UPPER * noise * (len(best) >= 8)
