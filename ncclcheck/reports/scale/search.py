"""Which groups of nodes are tried next where every pair is sound and the whole is not, and what that shows.

The search is one generator: it yields a round, groups that run at the same time, and is sent what each of them
reached; what it returns is the answer. Rank 0 asks it for the next round while the job runs, and the rule for the
answer afterwards: both replay what was measured, so they cannot disagree.

A group fails where too many nodes are in it, whichever they are (a limit), where certain nodes are all in it, or
where two groups of nodes are, in one collective or at the same time. What a group lacks cannot make it fail.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from ncclcheck.probes.facts import GroupTime

Group = tuple[str, ...]
Kind = Literal["sound", "gradual", "size", "members", "joined", "at once", "unsure"]
Rounds = Generator[list[Group], Sequence[float], "GroupSearchAnswer"]
_Bad = Generator[list[Group], Sequence[float], list[bool]]

SLOW = 0.7  # of what groups half as large reach: ring and tree lose less from size to size; chosen
LEAST = 3  # nodes: below that there is no whole beyond the pairs
_MOST_MEMBERS = 4  # nodes that fail only together and are named one by one; chosen
_DROPPED = 4  # nodes left out in turn where only the whole fails; so many are not all of a few members; chosen


@dataclass(frozen=True)
class GroupTest:
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
class GroupSearchAnswer:
    """What the rounds show.

    size: the smallest number of nodes that fails, whichever they are. parts: the members, one in each; or the two
    groups. tests: all that was tried; healthy: GB/s of groups that are sound.
    """

    kind: Kind
    tests: tuple[GroupTest, ...] = ()
    size: int = 0
    parts: tuple[Group, ...] = ()
    healthy: float = 0.0
    rounds: int = 0

    def bad(self, size: int) -> list[GroupTest]:
        """Groups of this size that failed."""
        return [test for test in self.tests if len(test.group) == size and test.bad]

    def sound(self, size: int) -> list[GroupTest]:
        """Groups of this size that did not."""
        return [test for test in self.tests if len(test.group) == size and not test.bad]

    @property
    def smallest_bad(self) -> GroupTest | None:
        """The smallest group that failed."""
        return min((test for test in self.tests if test.bad), key=lambda test: len(test.group), default=None)


@dataclass
class _TriedGroups:
    """What was tried so far. healthy: GB/s that a sound group of the size reached last carries."""

    names: Group
    healthy: float = 0.0
    dead_only: bool = False
    rounds: int = 0
    tests: list[GroupTest] = field(default_factory=list)
    _sound: list[set[str]] = field(default_factory=list)
    _alone: list[set[str]] = field(default_factory=list)

    def bad(self, *groups: Group) -> _Bad:
        """Which of these groups fail, by one round at most: parts of a sound group are not tried."""
        known = {group: self._known(group) for group in groups}
        if asked := [group for group in groups if known[group] is None]:
            tests = yield from self.tried(*asked)
            known |= {test.group: test.bad for test in tests}
        return [bool(known[group]) for group in groups]

    def tried(self, *groups: Group) -> Generator[list[Group], Sequence[float], list[GroupTest]]:
        """One round."""
        rates = yield [*groups]
        self.rounds += 1
        if not self.healthy:  # of the first ones the faster half says what is usual
            self.healthy = median(sorted(rates, reverse=True)[: max(1, len(rates) // 2)])
        tests = [
            GroupTest(group, rate, self.healthy, self.dead_only) for group, rate in zip(groups, rates, strict=True)
        ]
        self.tests += tests
        self._learnt(tests)
        return tests

    def _learnt(self, tests: list[GroupTest]) -> None:
        self._alone += [set(tests[0].group)] if len(tests) == 1 and tests[0].bad else []
        self._sound += [set(test.group) for test in tests if not test.bad]

    def counts_the_dead(self) -> list[GroupTest]:
        """From now on only groups through which nothing comes are bad, those of the first round among them."""
        self.dead_only = True
        self.tests = [GroupTest(test.group, test.gb_s, test.healthy, dead_only=True) for test in self.tests]
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

    def laddered(self, *groups: Group) -> Generator[list[Group], Sequence[float], list[GroupTest]]:
        """One round of groups of different sizes: each is compared with the next smaller one."""
        rates = yield [*groups]
        self.rounds += 1
        tests: list[GroupTest] = []
        for group, rate in sorted(zip(groups, rates, strict=True), key=lambda measured: len(measured[0])):
            tests.append(GroupTest(group, rate, self.healthy, self.dead_only))
            if not any(test.bad for test in tests):
                self.healthy = rate
        self.tests += tests
        self._learnt(tests)
        return tests

    def in_order(self, *parts: Group) -> Group:
        """Their nodes as one group, neighbours beside each other."""
        together = {name for part in parts for name in part}
        return tuple(name for name in self.names if name in together)

    def answer(self, kind: Kind, *parts: Group, size: int = 0) -> GroupSearchAnswer:
        """The end."""
        return GroupSearchAnswer(kind, tuple(self.tests), size, parts, self.healthy, self.rounds)


def next_groups(nodes: Sequence[str], done: Sequence[GroupTime]) -> list[Group]:
    """The groups of the next round, disjoint; empty where nothing is left to ask."""
    asked, _ = _replayed(nodes, done)
    return asked


def answered(nodes: Sequence[str], done: Sequence[GroupTime]) -> GroupSearchAnswer:
    """What the rounds so far show; `unsure` where they ended before the search did."""
    return _replayed(nodes, done)[1]


def _replayed(nodes: Sequence[str], done: Sequence[GroupTime]) -> tuple[list[Group], GroupSearchAnswer]:
    names = tuple(dict.fromkeys(nodes))
    if len(names) < LEAST:
        return [], GroupSearchAnswer("unsure")
    reached = {(time.round, tuple(time.nodes)): time.busbw_gb_s or 0.0 for time in done}
    case = _TriedGroups(names)
    rounds = _search(case)
    try:
        asked = next(rounds)
        while all((case.rounds, group) in reached for group in asked):
            asked = rounds.send([reached[case.rounds, group] for group in asked])
    except StopIteration as end:
        return [], end.value
    return asked, case.answer("unsure")


def _search(case: _TriedGroups) -> Rounds:
    """Twos, the whole, then ever larger groups until some fail; then which."""
    names = case.names
    twos = yield from case.tried(*_blocks(names, 2))
    if not case.healthy:
        return case.answer("unsure")
    whole = (yield from case.tried(names))[0]
    if not whole.gb_s:
        *twos, whole = case.counts_the_dead()
    if failed := [two.group for two in twos if two.bad]:
        return (yield from _of_two(case, failed[0]))
    case.healthy = median(two.gb_s for two in twos)
    if not whole.bad:
        return case.answer("sound")
    ladder = yield from case.laddered(*_ladder(names))
    failed = [test.group for test in ladder if test.bad]
    if not failed:
        if whole.gb_s and whole.gb_s >= SLOW * case.healthy:
            return case.answer("gradual")
        return (yield from _within(case, names, max((len(test.group) for test in ladder), default=1)))
    if not (yield from case.tried(failed[0]))[0].bad:
        return (yield from _at_once(case, failed))
    if len(failed) > 1:  # certain nodes are all in one of them only
        return (yield from _limit(case, failed[0], len(failed[0]) // 2))
    return (yield from _within(case, failed[0], 1))


def _ladder(names: Group) -> list[Group]:
    """Half of the nodes, a quarter of them, an eighth ..., so that one round tells how large a sound group is."""
    blocks: list[Group] = []
    start = 0
    while (size := len(names) // 2 ** (len(blocks) + 1)) >= LEAST:
        blocks.append(names[start : start + size])
        start += size
    return blocks


def _of_two(case: _TriedGroups, two: Group) -> Rounds:
    """A pair that no round of pairs had met."""
    again = yield from case.tried(two)
    return case.answer("members", two[:1], two[1:]) if again[0].bad else case.answer("unsure")


def _at_once(case: _TriedGroups, failed: list[Group]) -> Rounds:
    """A group that is sound alone, and was not beside the others: which of them disturbs it, and what in both."""
    first, others = failed[0], failed[1:]
    while len(others) > 1:
        half, rest = others[: len(others) // 2], others[len(others) // 2 :]
        others = half if (yield from case.tried(first, *half))[0].bad else rest
    if not others:
        return case.answer("unsure")
    if not (yield from case.bad(case.in_order(first, others[0])))[0]:
        both = yield from case.tried(first, others[0])
        sound = all(test.bad for test in both) and not (yield from case.tried(others[0]))[0].bad
        return case.answer("at once", first, others[0]) if sound else case.answer("unsure")
    group, other = sorted((first, others[0]), key=lambda part: case.names.index(part[0]))
    count = yield from _smallest(case, group, other, 0)
    other = other[:count]
    count = yield from _smallest(case, other, group[::-1], 0)
    return (yield from _joined(case, group[-count:] + other))


def _limit(case: _TriedGroups, block: Group, sound: int) -> Rounds:
    """Every group of this size fails: from how many nodes on."""
    size = yield from _smallest(case, (), block, sound)
    return (yield from _whichever(case, size))


def _whichever(case: _TriedGroups, size: int) -> Rounds:
    """So many others fail as well, and one fewer of them do not."""
    if size < len(case.names):
        start = (len(case.names) - size + 1) // 2
        fails = yield from case.bad(case.names[-size:])
        one_fewer = yield from case.bad(case.names[start : start + size - 1])
        if not fails[0] or one_fewer[0]:
            return case.answer("unsure")
    return case.answer("size", size=size)


def _within(case: _TriedGroups, block: Group, sound: int) -> Rounds:
    """Something in this group fails together; so many of its first nodes do not."""
    size = yield from _smallest(case, (), block, sound)
    if (yield from _is_exchangeable(case, block[:size])):
        return (yield from _crowd(case, block[:size]))
    return (yield from _members(case, block[size - 1], block[: size - 1]))


def _crowd(case: _TriedGroups, group: Group) -> Rounds:
    """Where the last node can be exchanged for its neighbour: too many nodes, or too many of two groups."""
    count = yield from _smallest(case, (), group[::-1], 1)
    if count == len(group):  # none can be spared
        return (yield from _whichever(case, count))
    return (yield from _joined(case, group[-count:]))


def _smallest(
    case: _TriedGroups, always: Group, order: Group, sound: int
) -> Generator[list[Group], Sequence[float], int]:
    """How many of these, in their order, fail with those that are always there; so many do not, all of them do."""
    failing = len(order)
    while failing - sound > 1:
        middle = (sound + failing) // 2
        if (yield from case.bad(case.in_order(always, order[:middle])))[0]:
            failing = middle
        else:
            sound = middle
    return failing


def _is_exchangeable(case: _TriedGroups, group: Group) -> Generator[list[Group], Sequence[float], bool]:
    """Whether they fail with the node that comes after the last one in its place: it is like that one, if any is.

    Where none comes after it: then the group is sound without any of them.
    """
    *before, last = group
    after = case.names.index(last) + 1
    if after < len(case.names):
        return (yield from case.bad((*before, case.names[after])))[0]
    for dropped in before[:: max(1, len(before) // _DROPPED)][:_DROPPED]:
        if (yield from case.bad(tuple(name for name in group if name != dropped)))[0]:
            return False
    return True


def _members(case: _TriedGroups, last: str, before: Group) -> Rounds:
    """One by one the nodes that must all be there; the first is known."""
    members: Group = (last,)
    left = before
    while len(members) < _MOST_MEMBERS:
        count = yield from _smallest(case, members, left, 0)
        members, left = (left[count - 1], *members), left[: count - 1]
        if (yield from case.bad(members))[0]:
            return case.answer("members", *((name,) for name in members))
        if not left:
            break
    return case.answer("unsure")


def _joined(case: _TriedGroups, crowd: Group) -> Rounds:
    """Neighbours of which neither end can be spared: how many at both ends fail, in one collective or at once."""
    half = len(crowd) // 2
    widths = [*(2**power for power in range(2, half.bit_length()) if 2**power < half), half]
    ends = [case.in_order(crowd[:width], crowd[-width:]) for width in widths[:-1]]
    least, most = -1, len(widths) - 1
    while most - least > 1:
        middle = (least + most) // 2
        if (yield from case.bad(ends[middle]))[0]:
            most = middle
        else:
            least = middle
    front, other = crowd[: widths[most]], crowd[widths[most] - len(crowd) :]
    other = other if most == len(widths) - 1 else crowd[-widths[most] :]
    both = yield from case.tried(front, other)
    return case.answer("at once" if all(each.bad for each in both) else "joined", front, other)


def _blocks(names: Group, size: int) -> list[Group]:
    """Neighbours in groups of this size; the rest is a smaller one, where it is no single node."""
    blocks = [names[start : start + size] for start in range(0, len(names), size)]
    return [block for block in blocks if len(block) > 1]
