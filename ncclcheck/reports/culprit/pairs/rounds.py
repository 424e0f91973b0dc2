"""Which pairs of nodes exchange next: disjoint pairs, chosen from what was measured so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from ncclcheck.probes.facts import PairTime
from ncclcheck.reports.culprit.pairs.blame import blame, places, unexplained
from ncclcheck.reports.culprit.pairs.samples import OneWay, PairSamples, ends_of, read, repeats
from ncclcheck.reports.culprit.pairs.two import once_more

Pair = tuple[str, str]

QUICK_ROUNDS = 8  # rounds of --quick at most, plus log2 of the nodes (see next_round); chosen
REPEATED_ROUNDS = 10  # rounds of repeats after a full tournament; chosen
_SMALL = 8  # nodes up to which all pairs are measured: 7 rounds, fewer than QUICK_ROUNDS; chosen
_GROUPING = 2  # exchanges per two slow nodes among themselves, to separate them from a slow fabric; chosen
_SPARE = 2  # exchanges beyond those that naming needs, since a partner may be slow too; chosen
_MANY = 8  # an eighth of the nodes: so many slow pairs of good nodes point at the fabric; chosen
_NEAR = 2  # places in the list of nodes: so near a partner is likely behind the same switch; chosen
_CLEAR = math.log(4)
_CONFIRMED = 3  # measurements of a path whose culprit is not much slower than the others (see _CLEAR); chosen


def next_round(nodes: Sequence[str], level: Literal["quick", "full"], done: Sequence[PairTime]) -> list[Pair]:
    """The disjoint pairs of the next round; empty when all is known that this level can know.

    quick: nodes half the list apart, then neighbours, with suspects given to nodes that were proven good; two
    rounds where nothing is slow. Suspects, and pairs that were slow once, are measured again until a fast
    exchange acquits them or an accident is out of the question; those that stay slow meet each other, for nodes
    that are fast together are not at fault, but the fabric between them and the rest; where many good nodes are
    slow with each other, pairs 1, 2, 4 ... apart tell who stands behind which switch. At most 8 + log2 N rounds;
    up to eight nodes all pairs are measured.
    full: the N-1 rounds of a round-robin tournament (N where N is odd), then at most 10 rounds in which pairs are
    repeated that were slow and that nobody explains, or somebody who is not much slower than the others. Nodes
    that answered nobody, two asked, are left out. Two nodes are measured twice, and again where a
    direction is slow.
    """
    names = list(dict.fromkeys(nodes))
    number = _rounds_done(done)
    lost = _lost(done)
    alive = [name for name in names if name not in lost]
    if len(alive) < 2:
        return []
    if len(names) == 2:
        return [(names[0], names[1])] if once_more(done, number) else []
    tournament = len(names) - 1 + len(names) % 2
    if level == "full" or len(names) <= _SMALL:
        if number < tournament:
            return [pair for pair in _circle(names, number) if lost.isdisjoint(pair)]
        return _repeat(read(done), alive) if number < tournament + REPEATED_ROUNDS else []
    if number == 0:
        return _apart(names)
    return _quick(names, alive, done) if number < QUICK_ROUNDS + len(names).bit_length() else []


def _rounds_done(done: Sequence[PairTime]) -> int:
    """Told round by round: the last one stands at the end."""
    return max((pair.round for pair in done[-64:]), default=-1) + 1


def _lost(done: Sequence[PairTime]) -> set[str]:
    """Nodes that failed with two others and never succeeded."""
    failed: dict[str, set[str]] = {}
    for pair in done:
        if pair.state != "ok":
            failed.setdefault(pair.a, set()).add(pair.b)
            failed.setdefault(pair.b, set()).add(pair.a)
    lost = {name for name, partners in failed.items() if len(partners) >= 2}
    return lost - {name for pair in done if pair.state == "ok" for name in (pair.a, pair.b)} if lost else lost


def _circle(names: list[str], number: int) -> list[Pair]:
    """Round `number` of the circle method: the first stands still, the others go around it; None sits out."""
    seats: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    turning = seats[1:]
    turn = number % len(turning)
    seats = [seats[0], *turning[turn:], *turning[:turn]]
    half = len(seats) // 2
    across = zip(seats[:half], reversed(seats[half:]), strict=True)
    return [(a, b) for a, b in across if a is not None and b is not None]


def _apart(names: list[str]) -> list[Pair]:
    """Each with the one half the list away: names in order stand in racks, and these pairs cross them."""
    half = len(names) // 2
    return list(zip(names[:half], names[half:], strict=False))


def _quick(names: list[str], alive: list[str], done: Sequence[PairTime]) -> list[Pair]:
    samples = read(done)
    met = {ends_of(way) for way in samples.ways}
    doubtful = _doubtful(samples, samples.ways)
    good = {name for ends in met - set(doubtful) for name in ends}
    suspects = [name for name in alive if name not in good]
    if _rounds_done(done) == 1:
        return _second(alive, suspects, good, met)
    guilty = blame(samples)
    left = _doubtful(samples, unexplained(samples, samples.ways, guilty))
    many = len([ends for ends in left if good.issuperset(ends)]) >= max(3, len(names) // _MANY)
    if many or any(guilt.suspect.part == "fabric" for guilt in guilty):
        return _ladder(names, set(alive), met) or _beside(names, suspects, good, met)
    named = {name for guilt in guilty for name in guilt.suspect.names}
    enough = repeats(places(samples, "nic")) + _SPARE
    open_cases = [name for name in suspects if name not in named and _seen(samples, name) < enough]
    settled = [name for name in suspects if name in named]
    pairs = _matched(open_cases, [name for name in alive if name in good], met)
    taken = {name for pair in pairs for name in pair}
    if len(settled) > 1 and _met_among(settled, met) < _GROUPING * len(settled) // 2:
        pairs += _matched(settled[: len(settled) // 2], settled[len(settled) // 2 :], met)
        taken |= set(settled)
    return pairs + _again(samples, left, {name for name in alive if name not in taken and name in good})


def _ladder(names: list[str], alive: set[str], met: set[Pair]) -> list[Pair]:
    """Pairs 1, 2, 4, 8 ... apart in turn: after so many rounds every two nodes are joined by ways that were seen.

    Many slow pairs of nodes that are fast with others are the mark of a switch; this tells who stands behind it.
    """
    apart = 1
    while apart < len(names):
        rung = [(names[i], names[i + apart]) for i in range(len(names) - apart) if i // apart % 2 == 0]
        pairs = [pair for pair in rung if alive.issuperset(pair)]
        if 2 * sum(_pair(*pair) in met for pair in pairs) < len(pairs):
            return pairs
        apart *= 2
    return []


def _beside(names: list[str], suspects: list[str], good: set[str], met: set[Pair]) -> list[Pair]:
    """Who was fast with nobody meets the nearest good ones: behind one switch it is fast, with a bad NIC not."""
    place = {name: index for index, name in enumerate(names)}
    free, pairs = set(good), list[Pair]()
    for name in suspects:
        near = (other for other in sorted(free, key=lambda other: abs(place[other] - place[name])))
        partner = next((other for other in near if _pair(name, other) not in met), None)
        if partner is not None and abs(place[partner] - place[name]) <= _NEAR:
            free.discard(partner)
            pairs.append((name, partner))
    return pairs


def _doubtful(samples: PairSamples, ways: Iterable[OneWay]) -> dict[Pair, float]:
    """Pairs of which one way, at least, may be slow: less is asked than of a culprit. The slowest of each."""
    suspicious = max(0.75 * samples.floor, 3 * samples.noise)
    slowest: dict[Pair, float] = {}
    for way in ways:
        if way.slowness >= suspicious:
            slowest[ends_of(way)] = max(slowest.get(ends_of(way), 0.0), way.slowness)
    return slowest


def _seen(samples: PairSamples, name: str) -> int:
    return sum({ends_of(way): way.times for way in samples.ways if name in (way.source, way.target)}.values())


def _second(alive: list[str], suspects: list[str], good: set[str], met: set[Pair]) -> list[Pair]:
    """Suspects with good ones first; everybody else with a neighbour."""
    pairs = _matched(suspects, [name for name in alive if name in good], met)
    taken = {name for pair in pairs for name in pair}
    rest = [name for name in alive if name not in taken]
    return pairs + _matched(rest[::2], rest[1::2], met)


def _met_among(names: list[str], met: set[Pair]) -> int:
    members = set(names)
    return sum(members.issuperset(ends) for ends in met)


def _matched(first: Iterable[str], second: Sequence[str], met: set[Pair]) -> list[Pair]:
    """Each of the first with one of the second whom it has not met."""
    free = list(second)
    pairs: list[Pair] = []
    for name in first:
        partner = next((other for other in free if _pair(name, other) not in met), None)
        if partner is not None:
            free.remove(partner)
            pairs.append((name, partner))
    return pairs


def _pair(a: str, b: str) -> Pair:
    return (a, b) if a < b else (b, a)


def _again(samples: PairSamples, doubtful: dict[Pair, float], free: set[str]) -> list[Pair]:
    """Slow pairs of nodes that are good with others: the link, or an accident."""
    needed = repeats(len(samples.ways))
    times = {ends_of(way): way.times for way in samples.ways}
    return _disjoint([ends for ends in _slowest_first(doubtful) if times[ends] < needed], free)


def _slowest_first(pairs: dict[Pair, float]) -> list[Pair]:
    return sorted(pairs, key=lambda ends: (-pairs[ends], ends))


def _disjoint(pairs: Iterable[Pair], free: set[str]) -> list[Pair]:
    chosen: list[Pair] = []
    left = set(free)
    for ends in pairs:
        if left.issuperset(ends):
            left -= set(ends)
            chosen.append(ends)
    return chosen


def _repeat(samples: PairSamples, alive: list[str]) -> list[Pair]:
    """After all pairs: those again that were slow too seldom to tell.

    That is what nobody explains; and what hangs on somebody who keeps a quarter of what is healthy: another
    program that is busy for a second makes a node look like that, and is gone when it is asked again.
    """
    guilty = blame(samples)
    asked = [(way, repeats(len(samples.ways))) for way in unexplained(samples, samples.ways, guilty)]
    asked += [(way, _CONFIRMED) for guilt in guilty if guilt.slowness < _CLEAR for way in guilt.ways]
    slow = {ends_of(w): w.slowness for w, times in asked if w.slowness >= samples.least(1) and w.times < times}
    return _disjoint(_slowest_first(slow), set(alive))
