"""Faults that no pair shows, planted: what groups of nodes then reach, and whether the answer is right."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.simulation.fabric import GB_S, Weather
from ncclcheck.probes.facts import GroupTime
from ncclcheck.reports.scale.search import GroupSearchAnswer, answered, next_groups

Kind = Literal["healthy", "gradual", "size", "2 members", "3 members", "4 members", "joined", "at once"]
KINDS: tuple[Kind, ...] = (
    "healthy",
    "gradual",
    "size",
    "2 members",
    "3 members",
    "4 members",
    "joined",
    "at once",
)
_BATCHES = 2  # as the job does it: the better of two counts


@dataclass
class Whole:
    """A cluster of which every pair is sound.

    factor: what a group keeps of its bandwidth where the fault is in it; 0: nothing comes through. size: the
    smallest that fails; members: fail where all are in one group; sides: two groups of neighbours, of which more
    than half of each must be in one collective (joined) or in collectives that run at once.
    """

    kind: Kind
    nodes: int
    group: int
    weather: Weather
    chance: random.Random
    factor: float = 0.0
    size: int = 0
    members: tuple[str, ...] = ()
    sides: tuple[tuple[str, ...], ...] = ()
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = [f"n{index:04d}" for index in range(self.nodes)]
        self.nic = {name: math.exp(-abs(self.chance.gauss(0, self.weather.unlike))) for name in self.names}
        if self.kind == "size":
            self.size = min(
                self.nodes, round(math.exp(self.chance.uniform(math.log(3), math.log(self.nodes + 1))))
            )
        if "members" in self.kind:
            self.members = tuple(sorted(self.chance.sample(self.names, int(self.kind[0]))))
        if self.kind in ("joined", "at once"):
            leaves = [tuple(self.names[i : i + self.group]) for i in range(0, self.nodes, self.group)]
            full = [leaf for leaf in leaves if len(leaf) == self.group]
            self.sides = tuple(sorted(self.chance.sample(full, 2)))
        self.factor = self.chance.choice((0.0, self.chance.uniform(0.25, 0.6)))

    def measure(self, groups: Sequence[tuple[str, ...]], number: int) -> list[GroupTime]:
        """One round; its groups run at the same time."""
        active = {name: index for index, group in enumerate(groups) for name in group}
        return [self._reached(group, number, self._fails(group, active)) for group in groups]

    def _fails(self, group: tuple[str, ...], active: dict[str, int]) -> bool:
        inside = set(group)
        if self.size:
            return len(group) >= self.size
        if self.members:
            return inside.issuperset(self.members)
        if not self.sides:
            return False
        mine = [2 * len(inside.intersection(side)) > self.group for side in self.sides]
        if self.kind == "joined":
            return all(mine)
        busy = [
            any(2 * sum(active.get(name) == other for name in side) > self.group for other in set(active.values()))
            for side in self.sides
        ]
        return any(mine) and all(busy)

    def _reached(self, group: tuple[str, ...], number: int, fails: bool) -> GroupTime:
        speed = GB_S * min(self.nic[name] for name in group) * (self.factor if fails else 1.0)
        if self.kind == "gradual":
            speed *= len(group) ** -0.2  # at 1,024 nodes a quarter is left, and no size is a step
        batches = [math.exp(-self.chance.gauss(0, self.weather.noise)) / self._burst() for _ in range(_BATCHES)]
        reached = speed * max(batches)
        return GroupTime(
            nodes=[*group], ranks=len(group), round=number, busbw_gb_s=reached or None,
            state="ok" if reached else "timed_out",
        )  # fmt: skip

    def _burst(self) -> float:
        hit = self.chance.random() < self.weather.bursts
        return self.chance.uniform(1.2, 3.0) if hit else 1.0


def ask(whole: Whole) -> GroupSearchAnswer:
    """Rounds until nothing is left to ask, as the job does it."""
    done: list[GroupTime] = []
    while groups := next_groups(whole.names, done):
        done += whole.measure(groups, len({time.round for time in done}))
    return answered(whole.names, done)


def is_right(whole: Whole, answer: GroupSearchAnswer) -> bool:
    """The kind and the size, the members, or parts of both sides and no more than twice a side."""
    if whole.kind == "healthy":
        return answer.kind == "sound"
    if whole.kind == "gradual":
        return answer.kind in ("sound", "gradual")
    if whole.kind == "size":
        return (answer.kind, answer.size) == ("size", whole.size)
    if whole.members:
        return answer.kind == "members" and sorted(n for part in answer.parts for n in part) == [*whole.members]
    if answer.kind != whole.kind or len(answer.parts) != 2:
        return False
    parts = sorted(answer.parts)
    return all(
        2 * len(set(part).intersection(side)) > whole.group and len(part) <= 2 * whole.group
        for part, side in zip(parts, whole.sides, strict=True)
    )
