"""Whether workers that live on see the epoch that the dataset is told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ncclcheck.probes.dataloader import indices
from ncclcheck.probes.dataloader.children import child, notes
from ncclcheck.probes.dataloader.children.notes import Notebook
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.rates import loaded
from ncclcheck.probes.dataloader.rates.loaded import LoaderCourse, Ran
from ncclcheck.probes.dataloader.rates.watched import GeneratorWatcher
from ncclcheck.probes.dataloader.samples.read.visit import Read, Visit, Visited, visit
from ncclcheck.probes.facts import Unread
from ncclcheck.probes.facts.data.streams import NewEpoch

_NAME = re.compile(r"_?(cur(rent)?_?)?epoch(_num|_idx)?$")
# epochs that are told after epoch 0: curricula and milestones often begin later than with the next one
_LATER = (1, 2, 10, 100)
_SAMPLES = 6  # read in each epoch: chosen, six equal shuffles by chance are one in 720
_MOST_INNER = 8  # datasets within datasets: chosen; a cycle ends too


def tell(made: FactoryLoader, epoch: int) -> str:
    """Tell the dataset, and what it is made of, which epoch it is, as a training would; gives how, or nothing."""
    how = ""
    for thing in _told(made.dataset):
        if callable(announce := getattr(thing, "set_epoch", None)):
            announce(epoch)
            how = how or f"set_epoch({epoch})"
            continue
        for name in [name for name in getattr(thing, "__dict__", {}) if _NAME.match(name)]:
            if type(getattr(thing, name)) is int:
                setattr(thing, name, epoch)
                how = how or f"{name} = {epoch}"
    return how


def tell_sampler(made: FactoryLoader, epoch: int) -> None:
    """DistributedSampler and its like have an epoch of their own."""
    for name in ("sampler", "batch_sampler"):
        sampler = made.loader.get(name)
        for thing in (sampler, getattr(sampler, "sampler", None)):
            if callable(announce := getattr(thing, "set_epoch", None)):
                announce(epoch)


def _told(dataset: Any) -> list[Any]:
    """The dataset, those that it wraps, and what each of them holds."""
    chain = [dataset]
    while len(chain) < _MOST_INNER and (inner := getattr(chain[-1], "dataset", None)) is not None:
        chain.append(inner)
    things = [thing for each in chain for thing in list(getattr(each, "__dict__", {}).values())[:64]]
    known = {id(each) for each in chain}
    return [
        *chain,
        *(thing for thing in things if callable(getattr(thing, "set_epoch", None)) and id(thing) not in known),
    ]


def look(made: FactoryLoader, seed: int, workers: int, folder: str, limit: float) -> list[NewEpoch] | Unread:
    """Read some samples in processes that are told one epoch or another, and in workers that live through both."""
    chosen = indices.chosen(made, _SAMPLES + 1, seed + 29)
    plan = Visit(chosen, seed, workers=workers)
    first = _told_alone(made, plan, 0, limit / 4)
    if first is None:
        return Unread("absent", "the dataset takes no epoch")
    for later in _LATER:
        then = _told_alone(made, plan, later, limit / 4)
        if then and (changed := list(_changed(first[1], then[1], chosen[1:]))):
            break
    else:
        return Unread("absent", "no sample depends on the epoch")
    return list(_in_workers(made, plan, changed, then[0], later, folder, limit / 2))


Change = tuple[int, str, Read, Read]


def _told_alone(made: FactoryLoader, plan: Visit, epoch: int, seconds: float) -> tuple[str, list[Read]] | None:
    """How the dataset was told, and what a process reads then."""

    def work() -> tuple[str, Visited]:
        how = tell(made, epoch)
        return how, visit(made, plan)

    ended = child.run(work, tuple[str, Visited], seconds)
    if ended.value is None or not ended.value[0]:
        return None
    return ended.value[0], ended.value[1].passes[0]


def _changed(first: list[Read], then: list[Read], read: list[int]) -> Iterator[Change]:
    for index, a, b in zip(read, first, then, strict=False):
        for leaf in a.digests:
            if leaf in b.digests and a.digests[leaf] != b.digests[leaf]:
                yield index, leaf, a, b


def _in_workers(
    made: FactoryLoader, plan: Visit, changed: list[Change], how: str, later: int, folder: str, seconds: float
) -> Iterator[NewEpoch]:
    """What the workers read in the second epoch, against both."""
    book = Notebook(folder)
    watcher = GeneratorWatcher(made, book, salt=plan.salt)
    each = [*plan.indices[1:]]
    course = LoaderCourse(
        workers=plan.workers,
        tell=lambda number: tell(made, later if number else 0),
        stacks_s=seconds,
        batches=[each[:1], *([sample] for sample in each[1:])],
    )
    child.run(lambda: loaded.epochs(made, watcher, course), Ran, seconds)
    ended = [note for note in notes.of(notes.read(folder), "end") if note.epoch == 1]
    got = {note.index: note.digests for note in ended if note.worker == 0 or not made.iterable}
    old = [change for change in changed if _got(got, change) == change[2].digests[change[1]]]
    new = [change for change in changed if _got(got, change) == change[3].digests[change[1]]]
    if old or new:
        index, leaf, a, b = (old or new)[0]
        yield NewEpoch(
            told=how, leaf=leaf, index=index, old=a.briefs[leaf], new=b.briefs[leaf],
            got=(a if old else b).briefs[leaf], count=len(old), of=len(old) + len(new),
        )  # fmt: skip


def _got(got: dict[str, dict[str, str]], change: Change) -> str:
    return got.get(str(change[0]), {}).get(change[1], "")
