"""Who may be behind slow ways: nodes, NICs, rails, links, and cuts through the fabric, each with its ways."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Literal, TypeVar

from ncclcheck.reports.culprit.pairs.cuts import cuts
from ncclcheck.reports.culprit.pairs.samples import OneWay, PairSamples, ends_of

Part = Literal["node", "nic", "rail", "link", "fabric"]
Direction = Literal["out", "in", "both"]
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True)
class Suspect:
    """A part that may be slow. names: one node; FROM and TO of a link; one side of a cut (others: the other).

    rail: None for all. direction: out of the first name, into it, or both.
    """

    part: Part
    names: tuple[str, ...]
    rail: int | None = None
    direction: Direction = "both"
    others: tuple[str, ...] = ()

    def covers(self, way: OneWay) -> bool:
        """Whether this way goes through it."""
        if self.rail not in (None, way.rail):
            return False
        leaves = self.direction != "in" and self._between(way.source, way.target)
        return leaves or (self.direction != "out" and self._between(way.target, way.source))

    def _between(self, near: str, far: str) -> bool:
        if self.part == "link":
            return (near, far) == self.names
        return self.part == "rail" or (near in self._sides[0] and (not self.others or far in self._sides[1]))

    @cached_property
    def _sides(self) -> tuple[frozenset[str], frozenset[str]]:
        return frozenset(self.names), frozenset(self.others)


Charge = tuple[Suspect, list[OneWay]]
Origin = tuple[int, str, str, int]


def origins(samples: PairSamples, way: OneWay) -> Iterator[Origin]:
    """What a way goes through: its rail, its two nodes, the link between them."""
    if len(samples.rails) > 1:
        yield 0, "", "", way.rail
    yield 1, way.source, "", 0
    yield 1, way.target, "", 0
    yield 2, *ends_of(way), 0


def charges(samples: PairSamples, origin: Origin, through: list[OneWay]) -> Iterator[Charge]:
    """The rail, node, NICs or link of an origin where slow ways go through it, with all its ways."""
    kind, a, b, rail = origin
    if kind == 0:
        yield Suspect("rail", (), rail), through
    elif kind == 1:
        yield from _node(samples, a, through)
    else:
        yield from _link(samples, a, b, through)


def through_fabric(samples: PairSamples, ways: list[OneWay], groups: Sequence[frozenset[str]]) -> Iterator[Charge]:
    """Cuts between groups of nodes, with the ways that cross them."""
    for cut in cuts(samples, ways, groups):
        yield from _both_ways(samples, Suspect("fabric", cut.side, cut.rail, others=cut.rest), cut.out, cut.into)


def middle(ways: Sequence[OneWay]) -> float:
    """How slow the part itself is: of ways that have a second fault beside it, the better ones speak."""
    return median(sorted(way.slowness for way in ways)[: (3 * len(ways) + 3) // 4])


def by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Things in groups, by what they have alike."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _node(samples: PairSamples, name: str, ways: list[OneWay]) -> Iterator[Charge]:
    """With one rail, a node's ways are those of its NIC."""
    if all(way.slowness < samples.floor / 2 for way in ways):
        return
    several = len(samples.rails) > 1
    sent, received = [w for w in ways if w.source == name], [w for w in ways if w.target == name]
    yield from _both_ways(samples, Suspect("node" if several else "nic", (name,)), sent, received)
    if several:
        sent_on, received_on = by(sent, lambda way: way.rail), by(received, lambda way: way.rail)
        for rail in sorted({*sent_on, *received_on}):
            card = Suspect("nic", (name,), rail)
            yield from _both_ways(samples, card, sent_on.get(rail, []), received_on.get(rail, []))


def _link(samples: PairSamples, a: str, b: str, through: list[OneWay]) -> Iterator[Charge]:
    """Two nodes: one direction or both, one rail or all."""
    if all(way.slowness < samples.least(way.times) for way in through):
        return
    scopes = [(None, through), *by(through, lambda way: way.rail).items()] if len(samples.rails) > 1 else []
    for rail, on_rail in scopes or [(None, through)]:
        there, back = [w for w in on_rail if w.source == a], [w for w in on_rail if w.source == b]
        yield from _both_ways(samples, Suspect("link", (a, b), rail), there, back)


def _both_ways(samples: PairSamples, suspect: Suspect, out: list[OneWay], into: list[OneWay]) -> Iterator[Charge]:
    """One direction, or both where each of them is slow by itself."""
    slow_out, slow_in = (bool(ways) and middle(ways) >= samples.least(len(ways)) for ways in (out, into))
    if slow_out:
        yield _turned(suspect, "out"), out
    if slow_in:
        yield _turned(suspect, "in"), into
    if slow_out and slow_in:
        yield suspect, out + into


def _turned(suspect: Suspect, direction: Direction) -> Suspect:
    """A link is named FROM, TO; other parts keep their name and tell the direction."""
    if suspect.part == "link":
        names = suspect.names if direction == "out" else suspect.names[::-1]
        return Suspect("link", names, suspect.rail, "out")
    return Suspect(suspect.part, suspect.names, suspect.rail, direction, suspect.others)
