"""What others do, on the same fabric: each is told what a healthy way carries, which the tool has to find out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.simulation.fabric import ALPHA_S, BYTES, GB_S, Fabric

_LIMIT = 0.88
_HEALTHY_S = ALPHA_S + BYTES / (GB_S * 1e9)
Answer = tuple[set[str], int]


def slowest_by_duration(fabric: Fabric) -> Answer:
    """One collective over all: the node whose ranks spent longest in it is named, if that is longer than healthy.

    In a ring all wait for the slowest way, so durations tell the late from the waiting the wrong way around.
    """
    names = fabric.names
    ring = list(zip(names, [*names[1:], names[0]], strict=True))
    step = max(_seconds(fabric, a, b) for a, b in ring)
    late = {fault.names[0]: 1 - fault.factor for fault in fabric.faults if fault.kind == "late"}
    wait = max(late.values(), default=0.0)
    noise = fabric.weather.noise
    spent = {
        name: (step + _HEALTHY_S * (wait - late.get(name, 0.0))) * math.exp(fabric.chance.gauss(0, noise))
        for name in names
    }
    longest = max(spent, key=lambda name: spent[name])
    return ({longest} if spent[longest] * _LIMIT > _HEALTHY_S else set()), 1


def _seconds(fabric: Fabric, a: str, b: str) -> float:
    """One way over all rails: the slowest rail counts."""
    speeds = [fabric.measure(a, b, rail) for rail in range(fabric.rails)]
    return max(BYTES / (speed * 1e9) if speed else 100.0 for speed in speeds)


def _pair(fabric: Fabric, a: str, b: str) -> float:
    return max(_seconds(fabric, a, b), _seconds(fabric, b, a))


def two_rounds(fabric: Fabric) -> Answer:
    """As DLRover's network check: neighbours, then the slowest with the fastest; who is slow twice is named."""
    first = _round(fabric, fabric.names)
    order = sorted(fabric.names, key=lambda name: (first.get(name, 0.0), name))
    crossed = [name for pair in zip(order, reversed(order), strict=True) for name in pair][: len(order)]
    second = _round(fabric, crossed)
    slow = [
        {name for name, seconds in times.items() if seconds * _LIMIT > _HEALTHY_S} for times in (first, second)
    ]
    return slow[0] & slow[1], 2


def _round(fabric: Fabric, order: Sequence[str]) -> dict[str, float]:
    times: dict[str, float] = {}
    for a, b in zip(order[::2], order[1::2], strict=False):
        times[a] = times[b] = _pair(fabric, a, b)
    return times


def bisection(fabric: Fabric) -> Answer:
    """Halves, and halves of those that are slow, each a ring of its own; the last ones with a good node each."""
    groups, last, rounds = [list(fabric.names)], list[str](), 0
    while groups:
        rounds += 1
        slow = [group for group in groups if _ring(fabric, group) * _LIMIT > _HEALTHY_S]
        last += [name for group in slow if len(group) <= 3 for name in group]
        groups = [half for g in slow if len(g) > 3 for half in (g[: len(g) // 2], g[len(g) // 2 :])]
    good = [name for name in fabric.names if name not in last]
    named = {
        name for name, other in zip(last, good, strict=False) if _pair(fabric, name, other) * _LIMIT > _HEALTHY_S
    }
    return named, rounds + bool(last)


def _ring(fabric: Fabric, group: Sequence[str]) -> float:
    return max(_seconds(fabric, a, b) for a, b in zip(group, [*group[1:], group[0]], strict=True))
