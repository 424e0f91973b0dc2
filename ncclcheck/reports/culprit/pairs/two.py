"""Two nodes: one of the two directions between them is slower than the other, whoever is to blame.

There is no third node to compare with, and what else the machine does for a second hits one direction alone. So
the pair is measured again until a round acquits it or an accident is out of the question.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ncclcheck.probes.facts import PairTime
from ncclcheck.reports.culprit.pairs.samples import OneWay, read

USUAL_ROUNDS = 2  # rounds of two nodes where no direction is slow: a dead path has failed twice; chosen
# Best of so many rounds: 37, 44 and 49 % were seen on healthy nodes at a load of 10 to 16 on 2 cores with two.
MOST_ROUNDS = 6
_LEAST_ROUNDS = 4  # rounds before a slow direction between two nodes is a finding; chosen
_APART = 0.5  # healthy containers on one machine went down to 0.58
_APART_WITHOUT_CORES = 0.2  # with 12 other processes on 2 cores one exchange in twenty went down to 0.34


@dataclass(frozen=True)
class SlowerDirection:
    """A direction and its share of what the better one carries, each by its best measurement."""

    way: OneWay
    share: float
    rails: int

    def is_proven(self, *, short_of_cores: bool) -> bool:
        """Measured often enough, and too slow for what healthy nodes do where they lack cores."""
        if self.way.is_dead:
            return self.way.times >= USUAL_ROUNDS
        most = _APART_WITHOUT_CORES if short_of_cores else _APART
        return self.way.times >= _LEAST_ROUNDS and self.share <= most


def slower(pairs: Sequence[PairTime]) -> SlowerDirection | None:
    """The slower direction, if it carries at most half of what the other does, in the best of its rounds."""
    ways = read(pairs).ways
    if not ways:
        return None
    slowest, fastest = (pick(ways, key=lambda way: way.slowness) for pick in (max, min))
    share = math.exp(fastest.slowness - slowest.slowness)
    return SlowerDirection(slowest, share, len({way.rail for way in ways})) if share <= _APART else None


def once_more(done: Sequence[PairTime], rounds: int) -> bool:
    """Whether the two are to be measured again after so many rounds; what carries nothing costs seconds each."""
    if rounds < USUAL_ROUNDS:
        return True
    slow = slower(done)
    return rounds < MOST_ROUNDS and slow is not None and not slow.way.is_dead
