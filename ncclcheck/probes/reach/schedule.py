"""Who tests whom, and who bursts to whom when. Every node finds the same answer by itself."""

from __future__ import annotations

ALL_PAIRS_UP_TO = 64  # nodes up to which every pair takes a burst; chosen
_ROUNDS = 3  # rounds of bursts beyond that: each node with three others; chosen

Pair = tuple[int, int]


def peers(place: int, count: int) -> list[int]:
    """The places that one tests: all, or in a large cluster those 1, 2, 4, 8, ... before and behind it.

    So each is tested by as many as it tests, in both directions, and all hang together.
    """
    if count <= ALL_PAIRS_UP_TO:
        return [other for other in range(count) if other != place]
    steps = [2**power for power in range((count - 1).bit_length())]
    neighbours = {(place + sign * step) % count for step in steps for sign in (1, -1)}
    partners = {other for pairs in rounds(count) for pair in pairs if place in pair for other in pair}
    return sorted((neighbours | partners) - {place})


def rounds(count: int) -> list[list[Pair]]:
    """Rounds of disjoint pairs, spread over a tournament in which everybody meets everybody."""
    if count < 2:
        return []
    most = count - 1 + count % 2
    wanted = range(most) if most <= _ROUNDS else [i * most // _ROUNDS for i in range(_ROUNDS)]
    return [_round(number, count, most) for number in wanted] * (2 if most == 1 else 1)


def _round(number: int, count: int, turns: int) -> list[Pair]:
    """The circle method: one place stays, the others turn; in an odd number one has a rest."""
    pairs = [(turns, number)]
    pairs += [((number + i) % turns, (number - i) % turns) for i in range(1, (turns + 1) // 2)]
    return [(min(pair), max(pair)) for pair in pairs if max(pair) < count]


def slots(count: int) -> list[list[Pair]]:
    """Slots of bursts, each (from, to): a round there, the same round back. A node is in one burst at a time."""
    bursts: list[list[Pair]] = []
    for pairs in rounds(count):
        bursts += [pairs, [(b, a) for a, b in pairs]]
    return bursts
