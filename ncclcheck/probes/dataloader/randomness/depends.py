"""Which leaves of a sample change with the state of which random generator: found by moving one at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from ncclcheck.probes.dataloader import indices
from ncclcheck.probes.dataloader.children import child, stops
from ncclcheck.probes.dataloader.children.child import ChildEnd
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.samples.read.visit import PRIVATE, Read, Visit, Visited, generators, visit
from ncclcheck.probes.facts.data.streams import Dependence, Frozen, MadeAlike, ReseededGenerator, WorkerStop

_SAMPLES = 32  # chosen: a transform that is applied to one sample in ten is seen in 97 of 100 looks (1 - 0.9**32)
_PASS_S = 0.1  # for a pass over them: chosen, there are up to a dozen passes
_LEAST_READ = 12  # a transform that is applied now and then: at p=0.2 one of so many shows it in 98 of 100 runs
_MOST_PRIVATE = 6  # that are reported; all are looked through
_SURE = 8  # samples of a private generator, whose values might only happen to agree
# share of samples that two passes over a stream have in common, from which on they are one stream: chosen
_SAME_STREAM = 0.3


@dataclass
class RandomnessAnswer:
    """What was found. ended, stop: how the first child ended; item_s, first_s: what its samples took.

    cut_short: there was no time to move the generators.
    """

    ended: ChildEnd[Visited]
    stop: WorkerStop | None = None
    depends: list[Dependence] = field(default_factory=list)
    reseeded: list[ReseededGenerator] = field(default_factory=list)
    frozen: list[Frozen] = field(default_factory=list)
    made_alike: list[MadeAlike] = field(default_factory=list)
    item_s: float = 0.0
    first_s: float = 0.0
    cut_short: bool = False


@dataclass
class _Changed:
    """A leaf of a sample that is another when a generator is elsewhere."""

    position: int
    leaf: str
    before: str
    after: str


def look(made: FactoryLoader, seed: int, workers: int, limit: float) -> RandomnessAnswer:
    """In children: as it is and again, with all generators elsewhere, then with one at a time."""
    begun = time.monotonic()
    plan = Visit(
        _chosen(made, seed), seed, workers=workers, seconds=min(_PASS_S, limit / 12), passes=2,
        least=_LEAST_READ, most_s=limit / 12,
    )  # fmt: skip
    ended, stop = stops.read_alone(lambda: visit(made, plan), Visited, limit, plan.mark)
    if ended.value is None:
        return RandomnessAnswer(ended, stop)
    base = ended.value
    count = max(1, len(base.passes[0]))
    randomness = RandomnessAnswer(ended, item_s=base.seconds / count, first_s=base.first_s)
    randomness.made_alike = [
        MadeAlike(call=each.call, place=each.place, seed=each.seed, count=each.count, batch=each.batch)
        for each in base.local[:_MOST_PRIVATE]
    ]
    randomness.reseeded = [] if made.iterable else list(_reseeded(base, plan))
    plan = Visit(plan.indices[: count + 1], seed, workers=workers)
    left, end = max(1.0, limit / 3), begun + limit
    other = _moved(made, plan, (*generators(), PRIVATE), left)
    if other is None:
        randomness.cut_short = True
        return randomness
    unstable = _unstable(base, _moved(made, plan, (), left)) if _changed(base, other) else set()
    if not (changed := _changed(base, other, unstable)):
        return randomness
    find = _GeneratorSearch(made, plan, base, unstable, left, end)
    randomness.depends = [dependence for name in generators() for dependence in find.among([name])]
    randomness.depends += islice(find.private([*base.private] if made.iterable else base.drawn), _MOST_PRIVATE)
    if not made.iterable:
        sure = _SURE if any(depend.private for depend in randomness.depends) else 1
        randomness.frozen = list(_frozen(base, changed, plan.indices[1:] or plan.indices, sure))
    return randomness


def _chosen(made: FactoryLoader, seed: int) -> list[int]:
    """The one to warm up with comes first: a random one."""
    chosen = indices.chosen(made, _SAMPLES + 1, seed + 17)
    return chosen if made.iterable else [*chosen[-1:], *chosen[:-1]]


def _moved(made: FactoryLoader, plan: Visit, moved: tuple[str, ...], seconds: float) -> Visited | None:
    there = Visit(plan.indices, plan.salt, moved, workers=plan.workers)
    return child.run(lambda: visit(made, there), Visited, seconds).value


def _all_reads(visited: Visited) -> list[Read]:
    """The first pass, and the batch that was made of it."""
    return [*visited.passes[0], *visited.batches[:1]]


def _differences(visited: Visited, two: Visited) -> Iterator[_Changed]:
    for position, (a, b) in enumerate(zip(_all_reads(visited), _all_reads(two), strict=False)):
        for leaf in a.digests.keys() | b.digests.keys() if not (a.error or b.error) else ():
            if a.digests.get(leaf) != b.digests.get(leaf):
                yield _Changed(position, leaf, a.briefs.get(leaf, "nothing"), b.briefs.get(leaf, "nothing"))


def _unstable(visited: Visited, two: Visited | None) -> set[str]:
    """Leaves that differ although nothing was moved: no seed controls them."""
    return set() if two is None else {difference.leaf for difference in _differences(visited, two)}


def _changed(base: Visited, other: Visited, but: set[str] | None = None) -> list[_Changed]:
    return [difference for difference in _differences(base, other) if difference.leaf not in (but or ())]


@dataclass
class _GeneratorSearch:
    """For the generators that matter. end: from then on those that are left together are taken for them."""

    made: FactoryLoader
    plan: Visit
    base: Visited
    unstable: set[str]
    seconds: float
    end: float

    def private(self, names: list[str]) -> Iterator[Dependence]:
        """Of many, such as two in each transform, those that matter: half of them at a time."""
        dependences = self.among(names)
        if len(names) < 2 or not dependences:
            yield from dependences
        elif time.monotonic() > self.end:
            yield from (
                replace(dependence, generator=name, kind=self.base.private[name])
                for dependence in dependences
                for name in names
            )
        else:
            half = len(names) // 2
            yield from self.private(names[:half])
            yield from self.private(names[half:])

    def among(self, names: Sequence[str]) -> list[Dependence]:
        """What changes where all of these are elsewhere, under the name of the first."""
        moved = _moved(self.made, self.plan, tuple(names), self.seconds) if names else None
        changed = _changed(self.base, moved, self.unstable) if moved else []
        if not moved or not changed:
            return []
        first, name = changed[0], names[0]
        read = self.plan.indices[1:] or self.plan.indices
        return [
            Dependence(
                generator=name,
                private=name in self.base.private,
                kind=self.base.private.get(name, ""),
                leaves=sorted({change.leaf for change in changed})[:20],
                index=read[min(first.position, len(read) - 1)],
                values=[first.before, first.after],
                order=self.made.iterable and _is_order(self.base, moved),
            )
        ]


def _is_order(visited: Visited, two: Visited) -> bool:
    """Whether the same samples come in another order. Of an endless stream only the beginning is known."""
    a, b = ([tuple(sorted(read.digests.items())) for read in seen.passes[0]] for seen in (visited, two))
    if visited.whole and two.whole:
        return sorted(a) == sorted(b)
    return len(set(a) & set(b)) >= _SAME_STREAM * len(set(a))


def _reseeded(base: Visited, plan: Visit) -> Iterator[ReseededGenerator]:
    """Generators that are in one state after a sample, whichever state they were in before it."""
    first, second = base.passes
    pairs = [(a.after, b.after) for a, b in zip(first, second, strict=False) if not (a.error or b.error)]
    for name in generators():
        same = [position for position, (a, b) in enumerate(pairs) if a[name] == b[name]]
        if pairs and len(same) * 2 > len(pairs):
            states = {pairs[position][0][name] for position in same}
            yield ReseededGenerator(
                generator=name,
                index=(plan.indices[1:] or plan.indices)[same[0]],
                constant=len(same) > 1 and len(states) == 1,
                count=len(same),
                of=len(pairs),
            )


def _frozen(base: Visited, changed: Sequence[_Changed], read: Sequence[int], sure: int) -> Iterator[Frozen]:
    """Random leaves that a second read, under the other seeds, gave as the first had."""
    first, second = base.passes
    for leaf in sorted({change.leaf for change in changed if change.position < len(second)}):
        all_of_it = [c for c in changed if c.leaf == leaf and c.position < len(second)]
        kept = [c for c in all_of_it if first[c.position].digests == second[c.position].digests]
        if len(kept) == len(all_of_it) >= sure:
            example = kept[0]
            yield Frozen(
                leaf=leaf, index=read[example.position], value=example.before, other=example.after,
                count=len(kept), of=len(all_of_it),
            )  # fmt: skip
