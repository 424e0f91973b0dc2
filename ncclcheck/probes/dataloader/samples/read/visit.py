"""Reads samples as worker 0 would, in a child of its own, with generators put where the caller wants them."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as field_of
from typing import Any

import torch
from msgspec import Struct, field

from ncclcheck.probes.dataloader import ours
from ncclcheck.probes.dataloader.children.inside import in_words
from ncclcheck.probes.dataloader.children.notes import ReadingMark
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.randomness import seeds
from ncclcheck.probes.dataloader.randomness.local import BATCH, Local, WatchedDraws, watched
from ncclcheck.probes.dataloader.samples.fingerprint import leaves
from ncclcheck.probes.dataloader.samples.read import glance

PRIVATE = "private"
_SALT_OF_FIRST = 7  # the first read is seeded alike in all visits, and so is what it makes for later
_STEPS = 997  # further than the samples of one visit draw
_COLLATED = 4  # samples that are made into a batch: chosen, the least that shows how it stacks and shares


@dataclass(frozen=True)
class Visit:
    """What to read, and how. The first index is read to warm up and does not count.

    moved: generators that are elsewhere than usual: global ones by name, private ones by path, or all of them by
    PRIVATE. seconds: no further sample is begun after so long, but for the first `least`, until `most_s` are over.
    passes: how often all is read, each under another salt, the second under the one that `moved` uses. mark: the
    sample that is being read.
    """

    indices: Sequence[int]
    salt: int
    moved: tuple[str, ...] = ()
    seconds: float = 1e9
    least: int = 1
    most_s: float = 0.0
    passes: int = 1
    workers: int = 2
    mark: ReadingMark = field_of(default_factory=ReadingMark)


class Read(Struct):
    """One sample: a digest and a brief text a leaf, and the states of the global generators afterwards."""

    digests: dict[str, str] = field(default_factory=dict)
    briefs: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)
    error: str = ""


class Visited(Struct):
    """What was read, pass by pass. batches: what the user's collate_fn made of the first samples of each pass.

    private: type of each generator that the user's objects hold, by path; drawn: those whose state reading
    changed. whole: a stream came to its end. local: lines that make a generator with one seed for all samples.
    """

    passes: list[list[Read]] = field(default_factory=list)
    batches: list[Read] = field(default_factory=list)
    private: dict[str, str] = field(default_factory=dict)
    drawn: list[str] = field(default_factory=list)
    whole: bool = False
    first_s: float = 0.0
    seconds: float = 0.0
    init_error: str = ""
    local: list[Local] = field(default_factory=list)


def become_worker(made: FactoryLoader, workers: int, seed: int) -> str:
    """Look like worker 0 of a loader to the user's code; gives the error of the user's worker_init_fn."""
    try:
        glance.be_worker(made, glance.ReadingOrder([], seed, workers=workers))
    except Exception as error:
        return in_words(error)
    return ""


def visit(made: FactoryLoader, plan: Visit) -> Visited:
    """Read the samples in this process, which is spent afterwards."""
    done = Visited(init_error=become_worker(made, plan.workers, plan.salt))
    for number in range(plan.passes):
        _pass(made, replace(plan, salt=plan.salt + number), done)
    return done


def _pass(made: FactoryLoader, plan: Visit, done: Visited) -> None:
    source, begun = glance.SampleSource(made), time.monotonic()
    source.begin(plan.salt)
    seeds.reseed(_SALT_OF_FIRST, 0)
    plan.mark.at(plan.indices[0])
    _attempt(source, plan.indices[0])
    warm = time.monotonic()
    indices = plan.indices[1:] or plan.indices
    if done.passes:
        indices, plan = indices[: len(done.passes[0])], replace(plan, seconds=1e9)
    else:
        done.private, done.first_s = _move_private(made, plan.moved), warm - begun
    samples: list[Any] = []
    own = private(made)
    before = {path: seeds.digest_of(generator) for path, generator in own.items()}
    with watched() as making:
        done.passes.append(list(_read_all(source, indices, plan, warm, samples, making)))
        making.at = BATCH
        if (collate := made.loader.get("collate_fn")) and samples:
            _seed(plan, -1)
            done.batches.append(_look_at(lambda: collate(samples)))
            if len(samples) > 2 and len(done.passes) == 1:  # of other samples, for the seeds that it sets
                _look_at(lambda: collate(samples[1:]))
    if len(done.passes) == 1:
        done.local = making.constant()
    done.drawn = [path for path, generator in own.items() if seeds.digest_of(generator) != before[path]]
    done.whole, done.seconds = source.ended, done.seconds or time.monotonic() - warm


def _attempt(source: glance.SampleSource, index: int) -> None:
    """The first read; where it raises, those that count tell so."""
    try:
        source.read(index)
    except Exception as error:
        ours.pass_on(error)


def _read_all(
    source: glance.SampleSource,
    indices: Sequence[int],
    plan: Visit,
    begun: float,
    samples: list[Any],
    making: WatchedDraws,
) -> Iterator[Read]:
    for position, index in enumerate(indices):
        seconds = max(plan.seconds, plan.most_s) if position < plan.least else plan.seconds
        if position and time.monotonic() > begun + seconds:
            return

        plan.mark.at(index)

        def read(index: int = index) -> Any:
            sample = source.read(index)
            if len(samples) < _COLLATED and not source.ended:
                samples.append(sample)
            return sample

        _seed(plan, index)
        making.at = position
        content = _look_at(read)
        if source.ended:
            return
        yield content


def _look_at(read: Any) -> Read:
    try:
        parts = leaves(read())
    except Exception as error:
        return Read(error=in_words(error))
    digests = {path: leaf.identity for path, leaf in parts.items()}
    return Read(digests, {path: leaf.brief for path, leaf in parts.items()}, seeds.states())


def _seed(plan: Visit, index: int) -> None:
    """All global generators by salt and index; those that are moved by the next salt."""
    seeds.reseed(plan.salt + 1, index)
    moved = {name: seeds.state_of(generator) for name, generator in generators().items() if name in plan.moved}
    seeds.reseed(plan.salt, index)
    for name, state in moved.items():
        seeds.restore(generators()[name], state)


def generators() -> dict[str, Any]:
    """The global generators by name; numpy's where it is imported."""
    own: Any = random.seed
    known: dict[str, Any] = {"python": own.__self__, "torch": torch.default_generator}
    if numpy := sys.modules.get("numpy"):
        known["numpy"] = numpy.random.mtrand._rand
    return known


def private(made: FactoryLoader) -> dict[str, object]:
    """Generators of the user's own that run in a worker, by path: of the dataset, and of the collate function."""
    own = seeds.private(made.dataset)
    known = {id(generator) for generator in own.values()}
    of_collate = seeds.private(made.loader.get("collate_fn"))
    named = {f"collate_fn{path.removeprefix('self')}": generator for path, generator in of_collate.items()}
    return {**own, **{path: generator for path, generator in named.items() if id(generator) not in known}}


def _move_private(made: FactoryLoader, moved: Sequence[str]) -> dict[str, str]:
    """Advance those that are to be elsewhere; name all that there are."""
    privates = private(made)
    for path, generator in privates.items():
        if path in moved or PRIVATE in moved:
            seeds.advance(generator, _STEPS)
    return {path: f"{type(g).__module__.partition('.')[0]}.{type(g).__name__}" for path, g in privates.items()}
