"""Which nodes, NICs, rails, links or parts of the fabric explain the slow ways: the fewest that explain them all.

The bandwidth of a way is the least of what its parts carry: sender, receiver, rail, link and the switches
between. So one slow part makes every way through it slow, and one fast way acquits all its parts. The part that
explains most is blamed first; the ways that it explains say nothing more of other parts, and the search begins
anew. That is why a bad node's partners are not named, and why two bad nodes do not hide each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from ncclcheck.reports.culprit.pairs.samples import DEAD, Heard, OneWay, PairSamples, counted, ends_of, repeats
from ncclcheck.reports.culprit.pairs.suspects import (
    Charge,
    Origin,
    Suspect,
    by,
    charges,
    middle,
    origins,
    through_fabric,
)

FEW = 3  # nodes: of two, neither can be named; names and unexplained pairs up to which no cut is tried; chosen
_ODD = 0.1  # share of a suspect's paths that may be fast although it is blamed: lucky measurements; chosen
_MOST = 64  # culprits named at most: more are no diagnosis, and each costs a pass over all paths; chosen
_IN_VAIN = 8  # rounds without a blamed fabric after which cuts, the costly part, are tried no more; chosen
_FEW_OF = 3  # more than a third of a suspect's measured paths must be left to speak against it; chosen


@dataclass(frozen=True)
class BlamedSuspect:
    """A suspect that explains slow ways and that no way acquits.

    slowness: the logarithm of healthy over its own bandwidth; seen: measurements at different times behind it.
    """

    suspect: Suspect
    slowness: float
    seen: int
    partners: int
    ways: tuple[OneWay, ...] = field(repr=False)

    @property
    def is_dead(self) -> bool:
        """Whether nothing got through."""
        return self.slowness >= DEAD


def blame(samples: PairSamples, groups: Sequence[frozenset[str]] = ()) -> list[BlamedSuspect]:
    """The guilty, the one that explains most first. groups: nodes known to stand behind one switch.

    Few measurements fit many a cut through the fabric by accident, so the fabric is blamed only where that needs
    fewer names, and leaves fewer slow pairs unexplained, than nodes, NICs, rails and links do.
    """
    if len(samples.names) < FEW:
        return []
    plain, cost = _greedy(samples, lambda _: ())
    if cost <= FEW:
        return plain
    cut, cost_of_cut = _greedy(samples, lambda ways: through_fabric(samples, ways, groups))
    return cut if cost_of_cut < cost else plain


def _greedy(
    samples: PairSamples, fabric: Callable[[list[OneWay]], Iterable[Charge]]
) -> tuple[list[BlamedSuspect], int]:
    """Blame after blame; with how many names and unexplained slow pairs it ends.

    The fabric explains much, so it is found soon: where it was not blamed for some rounds it is no longer asked.
    """
    blames: list[BlamedSuspect] = []
    case, in_vain = _OpenWays(samples), 0
    while len(blames) < _MOST:
        best = _best([*case.best(), *(case.tried(fabric(case.ways)) if in_vain < _IN_VAIN else ())])
        if best is None:
            break
        blames.append(best)
        in_vain = 0 if best.suspect.part == "fabric" else in_vain + 1
        case.close(best)
    return blames, len(blames) + len({ends_of(way) for way in case.ways if way.slowness >= samples.least(1)})


_Weighed = tuple[float, BlamedSuspect]


class _OpenWays:
    """The ways that nobody explains yet, and who may be behind them: only whose ways leave is judged anew."""

    def __init__(self, samples: PairSamples) -> None:
        self._samples = samples
        self.ways = list(samples.ways)
        self.heard = counted(samples.ways)
        self._through: dict[Origin, list[OneWay]] = {}
        for way in samples.ways:
            for origin in origins(samples, way):
                self._through.setdefault(origin, []).append(way)
        order = sorted(self._through)
        self._found = {origin: self._judged(origin) for origin in order}

    def _judged(self, origin: Origin) -> list[_Weighed]:
        return self.tried(charges(self._samples, origin, self._through[origin]))

    def tried(self, charged: Iterable[Charge]) -> list[_Weighed]:
        """Who of these may be blamed, with how much that explains."""
        blames = [
            attempt for suspect, ways in charged if (attempt := _try(self._samples, self.heard, suspect, ways))
        ]
        return [(_explained(self._samples, blamed), blamed) for blamed in blames]

    def best(self) -> Iterator[_Weighed]:
        """All suspects that may be blamed, in the order in which they are tried."""
        return chain.from_iterable(self._found.values())

    def close(self, guilty: BlamedSuspect) -> None:
        """The ways that this one explains say nothing more of others; behind a slow switch nobody is heard."""
        left = unexplained(self._samples, self.ways, [guilty])
        gone = set(self.ways).difference(left)
        self.ways = left
        if guilty.suspect.part == "fabric":
            self.heard.subtract(counted(gone))
        for origin in {origin for way in gone for origin in origins(self._samples, way)}:
            self._through[origin] = [way for way in self._through[origin] if way not in gone]
            self._found[origin] = self._judged(origin) if self._through[origin] else []


def unexplained(samples: PairSamples, ways: Iterable[OneWay], guilty: Iterable[BlamedSuspect]) -> list[OneWay]:
    """The ways that do not go through a guilty part, or are much slower than it."""
    left = list(ways)
    for guilt in guilty:
        through, limit = set(guilt.ways), guilt.slowness + samples.least(1)
        through |= _crossing(guilt.suspect, left) if guilt.suspect.part == "fabric" else set()
        left = [way for way in left if way not in through or way.slowness >= limit]
    return left


def _crossing(cut: Suspect, ways: Iterable[OneWay]) -> set[OneWay]:
    """A node with a fault of its own is on neither side of a cut: its ways to the slower one cross it."""
    sides = set(cut.names), set(cut.others)
    within = sides[0] | sides[1]
    outside = [w for w in ways if cut.rail in (None, w.rail) and (w.source in within) != (w.target in within)]
    crossing: set[OneWay] = set()
    for name, of_node in by(outside, lambda way: way.target if way.source in within else way.source).items():
        halves = [[way for way in of_node if {way.source, way.target} & half] for half in sides]
        if all(halves):
            joined = _joined(cut, name, behind=middle(halves[1]) > middle(halves[0]))
            crossing.update(way for way in of_node if joined.covers(way))
    return crossing


def _joined(cut: Suspect, name: str, *, behind: bool) -> Suspect:
    """With one more node: behind the slow switch, or on the other side."""
    return replace(cut, names=(*cut.names, name)) if behind else replace(cut, others=(*cut.others, name))


def _best(weighed: Iterable[_Weighed]) -> BlamedSuspect | None:
    """The suspect that explains most; of equals the first."""
    return max(weighed, key=lambda pair: pair[0], default=(0.0, None))[1]


def _explained(samples: PairSamples, guilt: BlamedSuspect) -> float:
    """Slow ways, weighed by how slow they are; beyond three times the floor all weigh the same."""
    return sum(min(3.0, way.slowness / samples.floor) for way in guilt.ways if way.slowness > samples.floor / 2)


def _try(samples: PairSamples, heard: Heard, suspect: Suspect, ways: Sequence[OneWay]) -> BlamedSuspect | None:
    """Whether all ways through this part are slow, often enough and with enough partners to be no accident."""
    slowness = middle(ways)
    if slowness < samples.floor or slowness < samples.proven(seen := _times(ways)):
        return None
    if seen < _needed(samples, suspect, slowness):
        return None
    partners = {name for way in ways for name in (way.source, way.target)} - {*suspect.names}
    if suspect.part in ("node", "nic") and len(partners) < 2:
        return None
    acquitting = [w for w in ways if w.slowness < min(slowness / 2, slowness - 3 * samples.noise)]
    if len(acquitting) > _ODD * len(ways) or not _speaks_for_all(samples, heard, suspect, ways):
        return None
    return BlamedSuspect(suspect, slowness, seen, len(partners), tuple(ways))


def _speaks_for_all(samples: PairSamples, heard: Heard, suspect: Suspect, through: Sequence[OneWay]) -> bool:
    """What others leave unexplained of its ways are the slowest ones: too few of them prove nothing.

    But for those behind a slow switch, which are left out whether they are slow or not: the rest is no selection.
    """
    if suspect.part in ("node", "nic"):
        directions = ("out", "in") if suspect.direction == "both" else (suspect.direction,)
        count = sum(heard[suspect.names[0], way, suspect.rail] for way in directions)
        return len(through) > count / _FEW_OF
    ways = samples.between[ends_of(through[0])] if suspect.part == "link" else samples.ways
    return len(through) > sum(map(suspect.covers, ways)) / _FEW_OF


def _times(ways: Sequence[OneWay]) -> int:
    """Measurements at different times: rails and directions of one exchange are one."""
    times: dict[tuple[str, str], int] = {}
    for way in ways:
        times[ends_of(way)] = max(times.get(ends_of(way), 0), way.times)
    return sum(times.values())


def _needed(samples: PairSamples, suspect: Suspect, slowness: float) -> int:
    """How often it must have been seen: dead ways are no bursts, and twice is enough."""
    return 2 if slowness >= DEAD else repeats(places(samples, suspect.part))


def places(samples: PairSamples, part: str) -> int:
    """Among how many of its kind this one is blamed."""
    each = 2 * len(samples.rails)
    return each * len(samples.names) if part in ("node", "nic") else len(samples.ways)
