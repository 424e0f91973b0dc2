"""A real DataLoader over the user's dataset, for a few batches an epoch, in a child of its own.

Its workers are forked, whatever the user wants: new interpreters take seconds to start, and draw the same numbers.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, field
from torch.utils.data import DataLoader, IterableDataset

from ncclcheck.probes.dataloader.children.inside import in_words, place_of
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.rates.watched import Collate, GeneratorWatcher, Short, WatchedInit, watched

BATCHES = 2  # of each worker and epoch
# samples of a batch, where the loader has no size of its own: chosen, small so that a slow dataset gives some
EACH = 4
EPOCHS = 2  # two: whether the second is like the first is one of the questions
FORK = "fork"
_OF_USE = ("collate_fn", "worker_init_fn", "batch_size")


@dataclass(frozen=True)
class LoaderCourse:
    """How the loader is used. tell: called before each epoch with its number; stacks_s: after so long, stacks.

    batches: indices to read instead of the sampler's.
    """

    workers: int
    tell: Callable[[int], object]
    stacks_s: float
    batches: Sequence[Sequence[int]] = ()


class WorkerExit(Struct):
    """A worker that is no more: its pid and its exit code (negative: a signal)."""

    worker: int
    pid: int
    code: int


class Ran(Struct):
    """How far the loader came."""

    epochs: int = 0
    error: str = ""
    place: str = ""
    exits: list[WorkerExit] = field(default_factory=list)


class AsGiven(Struct):
    """The user's own loader: len(loader), or what DataLoader said to the options."""

    batches: int | None = None
    refused: str = ""


def as_given(made: FactoryLoader) -> AsGiven:
    """Make the loader with the user's options, as the user would."""
    try:
        loader = made.make_loader()
    except Exception as error:
        return AsGiven(refused=in_words(error))
    try:
        return AsGiven(batches=None if made.iterable else len(loader))
    except Exception:  # a sampler without a length can be used as well
        return AsGiven()


def epochs(made: FactoryLoader, watcher: GeneratorWatcher, course: LoaderCourse) -> Ran:
    """Iterate over one loader, epoch by epoch, as a training would."""
    ran = Ran()
    try:
        loader = _loader(made, watcher, course)
        for number in range(EPOCHS):
            course.tell(number)
            watcher.notebook.epoch = number
            batches = iter(loader)
            for _ in _watched(batches, ran):
                pass
            del batches
            ran.epochs += 1
    except Exception as error:
        ran.error, ran.place = in_words(error), place_of(error)
    return ran


def _watched(batches: Any, ran: Ran) -> Iterator[Any]:
    """The batches; before an error goes on its way, note which worker is gone."""
    workers = getattr(batches, "_workers", [])
    try:
        yield from batches
    except Exception:
        ended = [(number, worker.pid, worker.exitcode) for number, worker in enumerate(workers)]
        ran.exits = [WorkerExit(number, pid, code) for number, pid, code in ended if code]
        raise


def _loader(made: FactoryLoader, watcher: GeneratorWatcher, course: LoaderCourse) -> DataLoader[Any]:
    """The user's loader with these workers, everything that runs in them within one of ours."""
    loader = _with_workers(made, course.workers)
    within: dict[str, Any] = {
        "dataset": watched(watcher),
        "collate_fn": Collate(watcher, loader.collate_fn),
        "worker_init_fn": WatchedInit(watcher, loader.worker_init_fn, course.stacks_s),
        "pin_memory": False,
        "timeout": 0,
    }
    if not made.iterable:
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        given = course.batches if loader.batch_sampler is not None else [*itertools.chain(*course.batches)]
        within[name] = given or Short(vars(loader)[name], BATCHES * course.workers, EACH)
    if made.own is not None and type(made.own).__init__ is not DataLoader.__init__:
        with contextlib.suppress(Exception):
            return _made_anew(loader, within)
    vars(loader).update(within)
    return loader


def _made_anew(loader: DataLoader[Any], within: Mapping[str, Any]) -> DataLoader[Any]:
    """By the user's own class, which may begin to iterate in its constructor; it may take other arguments."""
    batched: dict[str, Any] = {} if "batch_sampler" in within else {"batch_size": loader.batch_size}
    return type(loader)(
        **within,
        **batched,
        num_workers=loader.num_workers,
        multiprocessing_context=FORK,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def _with_workers(made: FactoryLoader, workers: int) -> DataLoader[Any]:
    """With the user's options, or where DataLoader refuses them with those that matter here."""
    own = made.own
    if own is not None and type(own) is not DataLoader:  # it may have an __iter__ of its own
        own.num_workers = workers
        own.multiprocessing_context = FORK
        own.prefetch_factor = own.prefetch_factor or 2
        return own
    batched = {} if {"batch_size", "batch_sampler"} & made.loader.keys() else {"batch_size": EACH}
    try:
        return made.make_loader(num_workers=workers, multiprocessing_context=FORK, **batched)
    except Exception:
        kept = {name: value for name, value in made.loader.items() if name in _OF_USE}
        return DataLoader(made.dataset, num_workers=workers, multiprocessing_context=FORK, **kept)


def can_be_loaded(made: FactoryLoader) -> bool:
    """Whether DataLoader takes it at all: what is only iterated must be an IterableDataset."""
    return not made.iterable or isinstance(made.dataset, IterableDataset)
