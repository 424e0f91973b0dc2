"""Which groups of nodes are tried next where every pair is sound and the whole is not, and what that shows.

The search is one generator: it yields a round, groups that run at the same time, and is sent what each of them
reached; what it returns is the answer. Rank 0 asks it for the next round while the job runs, and the rule for the
answer afterwards: both replay what was measured, so they cannot disagree.

A group fails where too many nodes are in it, whichever they are (a limit), where certain nodes are all in it, or
where two groups of nodes are, in one collective or at the same time. What a group lacks cannot make it fail.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from ncclcheck.probes.facts import GroupTime

Group = tuple[str, ...]
Kind = Literal["sound", "gradual", "size", "members", "joined", "at once", "unsure"]
Rounds = Generator[list[Group], Sequence[float], "Answer"]
_Bad = Generator[list[Group], Sequence[float], list[bool]]

SLOW = 0.7  # of what groups half as large reach: ring and tree lose less from size to size; chosen
LEAST = 3  # nodes: below that there is no whole beyond the pairs
_QUADRUPLED = 32  # nodes from which on sizes grow fourfold, and the one between is tried afterwards; chosen
_MOST_MEMBERS = 4  # nodes that fail only together and are named one by one; chosen
_DROPPED = 4  # nodes left out in turn where only the whole fails; so many are not all of a few members; chosen


@dataclass(frozen=True)
class Test:
    """One group that was tried. healthy: what it should have reached, GB/s.

    dead_only: where nothing comes through the whole, a slow group has another reason, such as too few cores.
    """

    group: Group
    gb_s: float
    healthy: float
    dead_only: bool = False

    @property
    def bad(self) -> bool:
        """Far below what groups half as large reach, or nothing came through."""
        return self.gb_s <= 0 or (not self.dead_only and self.gb_s < SLOW * self.healthy)


@dataclass(frozen=True)
class Answer:
    """What the rounds show.

    size: the smallest number of nodes that fails, whichever they are. parts: the members, one in each; or the two
    groups. tests: all that was tried; healthy: GB/s of groups that are sound.
    """

    kind: Kind
    tests: tuple[Test, ...] = ()
    size: int = 0
    parts: tuple[Group, ...] = ()
    healthy: float = 0.0
    rounds: int = 0

    def bad(self, size: int) -> list[Test]:
        """Groups of this size that failed."""
        return [one for one in self.tests if len(one.group) == size and one.bad]

    def sound(self, size: int) -> list[Test]:
        """Groups of this size that did not."""
        return [one for one in self.tests if len(one.group) == size and not one.bad]

    @property
    def smallest_bad(self) -> Test | None:
        """The smallest group that failed."""
        return min((one for one in self.tests if one.bad), key=lambda one: len(one.group), default=None)


@dataclass
class _Case:
    """What was tried so far. healthy: GB/s that a sound group of the size reached last carries."""

    names: Group
    healthy: float = 0.0
    dead_only: bool = False
    rounds: int = 0
    tests: list[Test] = field(default_factory=list)
    _sound: list[set[str]] = field(default_factory=list)
    _alone: list[set[str]] = field(default_factory=list)

    def bad(self, *groups: Group) -> _Bad:
        """Which of these groups fail, by one round at most: parts of a sound group are not tried."""
        known = {group: self._known(group) for group in groups}
        if asked := [group for group in groups if known[group] is None]:
            tests = yield from self.tried(*asked)
            known |= {one.group: one.bad for one in tests}
        return [bool(known[group]) for group in groups]

    def tried(self, *groups: Group) -> Generator[list[Group], Sequence[float], list[Test]]:
        """One round."""
        rates = yield [*groups]
        self.rounds += 1
        if not self.healthy:  # of the first ones the faster half says what is usual
            self.healthy = median(sorted(rates, reverse=True)[: max(1, len(rates) // 2)])
        tests = [
            Test(group, rate, self.healthy, self.dead_only) for group, rate in zip(groups, rates, strict=True)
        ]
        self.tests += tests
        self._learnt(tests)
        return tests

    def _learnt(self, tests: list[Test]) -> None:
        self._alone += [set(tests[0].group)] if len(tests) == 1 and tests[0].bad else []
        self._sound += [set(one.group) for one in tests if not one.bad]

    def counts_the_dead(self) -> list[Test]:
        """From now on only groups through which nothing comes are bad, those of the first round among them."""
        self.dead_only = True
        self.tests = [Test(one.group, one.gb_s, one.healthy, dead_only=True) for one in self.tests]
        self._sound = []
        self._learnt(self.tests[:-1])
        return self.tests

    def _known(self, group: Group) -> bool | None:
        """By what was tried: of a sound group all parts are sound, and what contains a faulty one is faulty.

        A group that failed beside others may be sound alone.
        """
        members = set(group)
        if any(members <= sound for sound in self._sound):
            return False
        return True if any(members >= bad for bad in self._alone) else None

    def grown(self, *groups: Group) -> _Bad:
        """The same; where none fails, the next size is compared with this one."""
        tests = yield from self.tried(*groups)
        if not any(one.bad for one in tests):
            self.healthy = median(one.gb_s for one in tests)
        return [one.bad for one in tests]

    def answer(self, kind: Kind, *parts: Group, size: int = 0) -> Answer:
        """The end."""
        return Answer(kind, tuple(self.tests), size, parts, self.healthy, self.rounds)


def next_groups(nodes: Sequence[str], done: Sequence[GroupTime]) -> list[Group]:
    """The groups of the next round, disjoint; empty where nothing is left to ask."""
    asked, _ = _replayed(nodes, done)
    return asked


def answered(nodes: Sequence[str], done: Sequence[GroupTime]) -> Answer:
    """What the rounds so far show; `unsure` where they ended before the search did."""
    return _replayed(nodes, done)[1]


def _replayed(nodes: Sequence[str], done: Sequence[GroupTime]) -> tuple[list[Group], Answer]:
    names = tuple(dict.fromkeys(nodes))
    if len(names) < LEAST:
        return [], Answer("unsure")
    reached = {(one.round, tuple(one.nodes)): one.busbw_gb_s or 0.0 for one in done}
    case = _Case(names)
    rounds = _search(case)
    try:
        asked = next(rounds)
        while all((case.rounds, group) in reached for group in asked):
            asked = rounds.send([reached[case.rounds, group] for group in asked])
    except StopIteration as end:
        return [], end.value
    return asked, case.answer("unsure")


def _search(case: _Case) -> Rounds:
    """Twos, the whole, then ever larger groups until some fail; then which."""
    names = case.names
    twos = yield from case.tried(*_blocks(names, 2))
    if not case.healthy:
        return case.answer("unsure")
    whole = (yield from case.tried(names))[0]
    if not whole.gb_s:
        *twos, whole = case.counts_the_dead()
    if failed := [one.group for one in twos if one.bad]:
        return (yield from _of_two(case, failed[0]))
    case.healthy = median(one.gb_s for one in twos)
    if not whole.bad:
        return case.answer("sound")
    sound, blocks, bad = yield from _grown(case)
    if not blocks:
        if whole.gb_s >= SLOW * case.healthy:
            return case.answer("gradual")
        blocks, bad = [names], [True]
    failed = [block for block, is_bad in zip(blocks, bad, strict=True) if is_bad]
    if len(blocks) > 1 and not (yield from case.tried(failed[0]))[0].bad:
        return (yield from _at_once(case, failed))
    full = [is_bad for block, is_bad in zip(blocks, bad, strict=True) if len(block) == len(blocks[0])]
    if len(full) > 1 and all(full):
        return (yield from _limit(case, failed[0], sound))
    return (yield from _within(case, failed[0], sound))


def _of_two(case: _Case, two: Group) -> Rounds:
    """A pair that no round of pairs had met."""
    again = yield from case.tried(two)
    return case.answer("members", two[:1], two[1:]) if again[0].bad else case.answer("unsure")


def _grown(case: _Case) -> Generator[list[Group], Sequence[float], tuple[int, list[Group], list[bool]]]:
    """The largest size of which no group fails, and the groups of the next one; none where only the whole does."""
    count = len(case.names)
    sound, step = 2, 4 if count > _QUADRUPLED else 2
    while sound * step < count:
        blocks = _blocks(case.names, sound * step)
        bad = yield from case.grown(*blocks)
        if any(bad):
            return (yield from _between(case, sound, blocks, bad))
        sound *= step
    return (yield from _between(case, sound, [], [])) if 2 * sound < count else (sound, [], [])


def _between(
    case: _Case, sound: int, blocks: list[Group], bad: list[bool]
) -> Generator[list[Group], Sequence[float], tuple[int, list[Group], list[bool]]]:
    """Twice the sound size, where sizes grew fourfold."""
    if blocks and len(blocks[0]) == 2 * sound:
        return sound, blocks, bad
    middle = _blocks(case.names, 2 * sound)
    fails = yield from case.grown(*middle)
    return (sound, middle, fails) if any(fails) else (2 * sound, blocks, bad)


def _at_once(case: _Case, failed: list[Group]) -> Rounds:
    """A group that is sound alone, and was not beside the others: which of them disturbs it."""
    first, others = failed[0], failed[1:]
    while len(others) > 1:
        half, rest = others[: len(others) // 2], others[len(others) // 2 :]
        others = half if (yield from case.tried(first, *half))[0].bad else rest
    if not others or not all(one.bad for one in (yield from case.tried(first, others[0]))):
        return case.answer("unsure")
    if (yield from case.tried(others[0]))[0].bad:
        return case.answer("unsure")
    return case.answer("at once", first, others[0])


def _limit(case: _Case, block: Group, sound: int) -> Rounds:
    """Every group of this size fails: from how many nodes on."""
    size = yield from _smallest(case, (), block, sound)
    return (yield from _whichever(case, size))


def _whichever(case: _Case, size: int) -> Rounds:
    """So many others fail as well, and one fewer of them do not."""
    if size < len(case.names):
        start = (len(case.names) - size + 1) // 2
        fails = yield from case.bad(case.names[-size:])
        one_fewer = yield from case.bad(case.names[start : start + size - 1])
        if not fails[0] or one_fewer[0]:
            return case.answer("unsure")
    return case.answer("size", size=size)


def _within(case: _Case, block: Group, sound: int) -> Rounds:
    """Something in this group fails together, and neither of its halves alone."""
    one, other = yield from _halved(case, block[:sound], block[sound:])
    if len(one) + len(other) == 2:
        again = yield from case.tried(one + other)
        return case.answer("members", one, other) if again[0].bad else case.answer("unsure")
    order = one + other
    size = yield from _smallest(case, (), order, len(one))
    last, before = order[size - 1], order[: size - 1]
    if (yield from _is_exchangeable(case, order, size)):
        answer = yield from _whichever(case, size)
        if answer.kind == "size":
            return answer
    without = tuple(name for name in order if name != last)
    if len(without) > len(before) and (yield from case.bad(without))[0]:
        return (yield from _joined(case, one, other))
    return (yield from _members(case, last, before))


def _halved(case: _Case, one: Group, other: Group) -> Generator[list[Group], Sequence[float], tuple[Group, Group]]:
    """The smallest parts of both that still fail together, by halves; two combinations at a time."""
    while len(one) + len(other) > 2:
        (a, b), (c, d) = _halves(one), _halves(other)
        found: tuple[Group, Group] | None = None
        for combinations in ([(a, c), (b, d)], [(a, d), (b, c)]):
            tried = [(left, right) for left, right in combinations if left and right]
            bad = (yield from case.bad(*(left + right for left, right in tried))) if tried else []
            if any(bad):
                found = tried[bad.index(True)]
                break
        if found is None:
            break
        one, other = found
    return one, other


def _smallest(
    case: _Case, always: Group, order: Group, sound: int
) -> Generator[list[Group], Sequence[float], int]:
    """How many of these, in their order, fail with those that are always there; so many do not, all of them do."""
    failing = len(order)
    while failing - sound > 1:
        middle = (sound + failing) // 2
        if (yield from case.bad(always + order[:middle]))[0]:
            failing = middle
        else:
            sound = middle
    return failing


def _is_exchangeable(case: _Case, order: Group, size: int) -> Generator[list[Group], Sequence[float], bool]:
    """Whether so many of these fail with another node in place of the last one, a stranger to all of them if any.

    Where all nodes are needed there is no other: then the group is sound without any of them.
    """
    group, before = order[:size], order[: size - 1]
    others = sorted((name for name in case.names if name not in group), key=lambda name: name in order)
    if others:
        return (yield from case.bad((*before, others[0])))[0]
    step = max(1, len(before) // _DROPPED)
    for dropped in before[::step][:_DROPPED]:
        if (yield from case.bad(tuple(name for name in group if name != dropped)))[0]:
            return False
    return True


def _members(case: _Case, last: str, before: Group) -> Rounds:
    """One by one the nodes that must all be there; the first is known."""
    found: Group = (last,)
    left = before
    while len(found) < _MOST_MEMBERS:
        count = yield from _smallest(case, found, left, 0)
        found, left = (left[count - 1], *found), left[: count - 1]
        if (yield from case.bad(found))[0]:
            return case.answer("members", *((name,) for name in found))
        if not left:
            break
    return case.answer("unsure")


def _joined(case: _Case, one: Group, other: Group) -> Rounds:
    """Two groups that fail in one collective, and not for the sake of a single node."""
    one = yield from _needed(case, one, other)
    other = yield from _needed(case, other, one)
    return case.answer("joined", one, other)


def _needed(case: _Case, part: Group, other: Group) -> Generator[list[Group], Sequence[float], Group]:
    """Half of a part, as long as one is enough."""
    while len(part) > 1:
        for half in _halves(part):
            if (yield from case.bad(half + other))[0]:
                part = half
                break
        else:
            return part
    return part


def _blocks(names: Group, size: int) -> list[Group]:
    """Neighbours in groups of this size; the rest is a smaller one, where it is no single node."""
    blocks = [names[start : start + size] for start in range(0, len(names), size)]
    return [block for block in blocks if len(block) > 1]


def _halves(part: Group) -> tuple[Group, Group]:
    """The larger first; of a single node the second is empty."""
    middle = math.ceil(len(part) / 2)
    return part[:middle], part[middle:]


def rounds_of(done: Iterable[GroupTime]) -> int:
    """How many rounds were measured."""
    return max((one.round for one in done), default=-1) + 1
