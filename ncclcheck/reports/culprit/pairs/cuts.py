"""Parts of the fabric: groups of nodes that are fast among themselves and slow to all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from ncclcheck.reports.culprit.pairs.samples import Ends, OneWay, PairSamples, ends_of

_MOST_SEEDS = 4  # nodes with the most slow partners from which a side is grown: bounds the time; chosen
_MOST_GROUPS = 16  # known groups, and pairs of them, that are tried as sides: bounds the time; chosen
_FEWEST = 3  # slow pairs below which no cut is looked for: single links explain them; chosen
_SWEEPS = 3  # passes over the nodes until sides settle; chosen
_PART = 64  # nodes per slow pair: in a large cluster a cut needs one slow pair for each so many nodes; chosen


@dataclass(frozen=True)
class RailCut:
    """Two sides and the ways between them. rail: None for all."""

    side: tuple[str, ...]
    rest: tuple[str, ...]
    rail: int | None
    out: list[OneWay] = field(repr=False)
    into: list[OneWay] = field(repr=False)


def cuts(samples: PairSamples, ways: list[OneWay], groups: Sequence[frozenset[str]]) -> Iterator[RailCut]:
    """Cuts worth trying: of all rails together, and of a rail on which more pairs are slow than on all."""
    whole = _verdicts(samples, ways)
    slow = sum(whole.values())
    fewest = max(_FEWEST, len(samples.names) // _PART)
    yield from _on_rail(None, ways, whole, groups) if slow >= fewest else ()
    for rail in samples.rails if len(samples.rails) > 1 else ():
        on_rail = [way for way in ways if way.rail == rail]
        verdicts = _verdicts(samples, on_rail)
        if sum(verdicts.values()) >= max(fewest, 1.2 * slow):
            yield from _on_rail(rail, on_rail, verdicts, groups)


def _on_rail(
    rail: int | None, ways: list[OneWay], verdicts: dict[Ends, bool], groups: Sequence[frozenset[str]]
) -> Iterator[RailCut]:
    for side, rest in sorted(_sides(verdicts, groups)):
        if _fast_inside(verdicts, side) and _fast_inside(verdicts, rest):
            half, other = set(side), set(rest)
            out = [way for way in ways if way.source in half and way.target in other]
            yield RailCut(
                side, rest, rail, out, [way for way in ways if way.source in other and way.target in half]
            )


def _verdicts(samples: PairSamples, ways: list[OneWay]) -> dict[Ends, bool]:
    """Of each measured pair whether it is slow, in one direction at least, on most rails of those given."""
    slow: dict[Ends, list[int]] = {}
    for way in ways:
        counted = slow.setdefault(ends_of(way), [0, 0, 0])
        counted[way.source < way.target] += way.slowness >= samples.least(way.times)
        counted[2] += 1
    return {ends: max(there, back) * 4 > total for ends, (there, back, total) in slow.items()}


def _sides(
    verdicts: dict[Ends, bool], groups: Sequence[frozenset[str]]
) -> set[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Candidates: the known groups; nodes slow with most others; and who shares the slow partners of a node."""
    names = {name for ends in verdicts for name in ends}
    slow = {name: set[str]() for name in names}
    seen = dict.fromkeys(names, 0)
    for (a, b), is_slow in verdicts.items():
        seen[a], seen[b] = seen[a] + 1, seen[b] + 1
        if is_slow:
            slow[a].add(b)
            slow[b].add(a)
    candidates = _of_groups(names, [ends for ends, is_slow in verdicts.items() if is_slow], groups)
    together = _together(
        verdicts, {name for name in names if len(slow[name]) >= 2 and 2 * len(slow[name]) > seen[name]}
    )
    candidates += [(together, names - together), _coloured(verdicts)]
    for seed in sorted(names, key=lambda name: (-len(slow[name]), name))[:_MOST_SEEDS]:
        candidates.append(_shared(slow, seed))
    pruned = ((_welcome(verdicts, half), _welcome(verdicts, other)) for half, other in candidates)
    return {_ordered(half, other) for half, other in pruned if min(len(half), len(other)) >= 2}


def _of_groups(
    names: set[str], slow: list[Ends], groups: Sequence[frozenset[str]]
) -> list[tuple[Set[str], Set[str]]]:
    """A known group and all others, two known groups: those between which most pairs are slow."""
    inside: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        for name in group:
            inside.setdefault(name, []).append(index)
    leaving, between = Counter[int](), Counter[tuple[int, int]]()
    for a, b in slow:
        only_a, only_b = [[g for g in inside.get(n, ()) if m not in groups[g]] for n, m in ((a, b), (b, a))]
        leaving.update([*only_a, *only_b])
        between.update((min(g, h), max(g, h)) for g in only_a for h in only_b)
    candidates: list[tuple[Set[str], Set[str]]] = []
    candidates += [(groups[g] & names, names - groups[g]) for g, _ in leaving.most_common(_MOST_GROUPS)]
    return candidates + [(groups[g] & names, groups[h] & names) for (g, h), _ in between.most_common(_MOST_GROUPS)]


def _welcome(verdicts: dict[Ends, bool], side: Set[str]) -> set[str]:
    """Those that are fast with somebody of their own side: who is not, has a fault of its own."""
    return {name for ends, is_slow in verdicts.items() if not is_slow and side >= {*ends} for name in ends}


def _ordered(side: Set[str], other: Set[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    first, second = tuple(sorted(side)), tuple(sorted(other))
    return (first, second) if (len(first), first) < (len(second), second) else (second, first)


def _together(verdicts: dict[Ends, bool], bad: set[str]) -> set[str]:
    """Of nodes that are slow with most others those that are fast with each other: no bad NIC is."""
    fast, slow = set[str](), set[str]()
    for ends, is_slow in verdicts.items():
        if bad.issuperset(ends):
            (slow if is_slow else fast).update(ends)
    return fast - slow


def _shared(slow: dict[str, set[str]], seed: str) -> tuple[set[str], set[str]]:
    """All that are slow with most of the seed's slow partners, and all that are slow with most of those."""
    side = _with_most(slow, slow[seed])
    return side, _with_most(slow, side)


def _with_most(slow: dict[str, set[str]], partners: set[str]) -> set[str]:
    counts: dict[str, int] = {}
    for partner in partners:
        for name in slow[partner]:
            counts[name] = counts.get(name, 0) + 1
    return {name for name, count in counts.items() if 2 * count > len(partners)} - partners


def _coloured(verdicts: dict[Ends, bool]) -> tuple[set[str], set[str]]:
    """Two sides so that fast pairs stay on one and slow pairs cross: walked along, then put to the vote."""
    near: dict[str, list[tuple[str, bool]]] = {}
    for (a, b), is_slow in verdicts.items():
        near.setdefault(a, []).append((b, is_slow))
        near.setdefault(b, []).append((a, is_slow))
    colour: dict[str, bool] = {}
    largest: list[str] = []
    for start in near:
        members = _walk(near, colour, start) if start not in colour else []
        largest = max(largest, members, key=len)
    for _ in range(_SWEEPS):
        for name in largest:
            votes = [colour[other] != is_slow for other, is_slow in near[name]]
            colour[name] = colour[name] if 2 * sum(votes) == len(votes) else 2 * sum(votes) > len(votes)
    side = {name for name in largest if colour[name]}
    return side, set(largest) - side


def _walk(near: dict[str, list[tuple[str, bool]]], colour: dict[str, bool], start: str) -> list[str]:
    """Colour all that can be reached from here; who they are."""
    colour[start], members = False, [start]
    for name in members:
        for other, is_slow in near[name]:
            if other not in colour:
                colour[other] = colour[name] != is_slow
                members.append(other)
    return members


def _fast_inside(verdicts: dict[Ends, bool], side: tuple[str, ...]) -> bool:
    """Whether nodes of one side reach each other well: at least one pair was seen, and most are fast."""
    members = set(side)
    inside = [is_slow for ends, is_slow in verdicts.items() if members.issuperset(ends)]
    return bool(inside) and sum(inside) <= 0.2 * len(inside)
