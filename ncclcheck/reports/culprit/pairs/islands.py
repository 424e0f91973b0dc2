"""Groups of nodes that are fast among themselves and slow to each other: what lies between them is to blame.

The fewest parts that explain all slow ways need a healthy majority; where a thin trunk joins two racks, most ways
cross it and no node is slower than another. Seen on four hosts: 0.0028 GB/s across, 0.25 to 2.05 GB/s within.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ncclcheck.probes.facts import PairTime
from ncclcheck.reports.subjects.nodes.connected import connected

_LEAST = 10.0  # times: noise of shared cores made ways of one rack differ eightfold
_SMALLEST = 2  # nodes of a group; one node alone is judged as a node


@dataclass(frozen=True)
class Islands:
    """The groups, the fastest way between two of them, and the slowest within one, in GB/s."""

    groups: list[list[str]]
    across: float
    within: float

    @property
    def slowness(self) -> float:
        """Natural logarithm of the bandwidth within groups over that between them."""
        return math.log(self.within / self.across)


def islands(pairs: Sequence[PairTime]) -> Islands | None:
    """None where some way between groups is fast, or some way within one is not."""
    best: dict[tuple[str, str], float] = {}
    for pair in pairs:
        ends = (pair.a, pair.b) if pair.a < pair.b else (pair.b, pair.a)
        best[ends] = max(best.get(ends, 0.0), _rate(pair))
    best = {ends: rate for ends, rate in best.items() if rate > 0}
    ordered = sorted(best.values())
    gaps = [(high / low, low, high) for low, high in pairwise(ordered)]
    widest = max(gaps, default=(0.0, 0.0, 0.0))
    if widest[0] < _LEAST:
        return None
    _, across, within = widest
    nodes = sorted({end for ends in best for end in ends})
    groups = sorted(connected(nodes, [ends for ends, rate in best.items() if rate >= within]))
    crossing = [ends for ends, rate in best.items() if rate <= across]
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    if min(map(len, groups)) < _SMALLEST or any(group_of[a] == group_of[b] for a, b in crossing):
        return None
    return Islands(groups, across, within)


def _rate(pair: PairTime) -> float:
    """GB/s of the better direction, without the latency, which is most of a small exchange; 0 where unknown."""
    latency = (pair.latency_us or 0.0) * 1e-6
    seconds = [pair.bytes / (rate * 1e9) for rate in (pair.a_to_b_gb_s, pair.b_to_a_gb_s) if rate]
    sent = [pair.bytes / (second - latency) / 1e9 for second in seconds if second > 2 * latency]
    return max(sent, default=0.0)
