"""The random streams of workers and epochs, and how workers end: a real DataLoader over the user's dataset."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from ncclcheck.probes.dataloader.children import child, notes, stops
from ncclcheck.probes.dataloader.children.notes import Diary, Notebook
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.randomness import depends, newepoch, twins
from ncclcheck.probes.dataloader.randomness.depends import RandomnessAnswer
from ncclcheck.probes.dataloader.rates import loaded
from ncclcheck.probes.dataloader.rates.loaded import AsGiven, LoaderCourse, Ran
from ncclcheck.probes.dataloader.rates.watched import GeneratorWatcher
from ncclcheck.probes.dataloader.samples.read.visit import Read, Visit, Visited, visit
from ncclcheck.probes.facts import Unread
from ncclcheck.probes.facts.data import Streams
from ncclcheck.probes.facts.data.streams import Option, RefusedOptions, WorkerStop
from ncclcheck.probes.job.context import DataPlan

_ALONE_S = 10.0  # a sample that takes longer than this outside of workers is taken for hung
_AT_LEAST_S = 4.0  # for a real loader, whose workers must be forked and read: chosen
_AGAIN = 1.5  # times the limit, for a loader that did not come to its end; chosen
_AGAIN_S = 3.0  # to read again what raised in a worker: chosen
_MOST_WORKERS = 4  # chosen: two show equal streams, four whether it is all of them
# before the end of the limit workers write their stacks, for which they need some milliseconds: chosen
_STACKS_BEFORE_S = 0.5
_NO_TIME = "the time budget was used up"


@dataclass
class _Loaded:
    """A finished run of the loader."""

    ran: child.ChildEnd[Ran]
    diaries: list[Diary] = field(default_factory=list)


def look(made: FactoryLoader, plan: DataPlan, limit: float) -> Streams:
    """Everything that a real loader shows, within the limit."""
    end = time.monotonic() + limit
    workers = _workers(made)
    given = child.run(lambda: loaded.as_given(made), AsGiven, limit).value or AsGiven()
    streams = _begin(made, given, workers)
    random = depends.look(made, plan.seed, workers, min(_ALONE_S, limit / 2))
    if random.stop:
        streams = replace(streams, stops=[random.stop])
    left = end - time.monotonic()
    if not loaded.can_be_loaded(made) or random.ended.timed_out:
        return _unjudged(streams, random)
    limit = min(max(left, _AT_LEAST_S), _loader_limit(random))
    run = _run(made, plan, random, workers, limit)
    if run.ran.timed_out:  # by chance, or on a machine that others use: only what stands still twice is hung
        run = _run(made, plan, random, workers, max(_AGAIN * limit, end - time.monotonic()))
    streams = _with_run(streams, random, run)
    streams = replace(streams, stops=_alone_too(made, plan, streams.stops, random))
    if any(stop.kind == "raised" and not stop.alone for stop in streams.stops):
        streams = _one_worker_too(
            streams, _run(made, plan, random, 1, min(limit, max(1.0, end - time.monotonic())))
        )
    left = end - time.monotonic()
    if streams.persistent and not streams.stops and left > 1:
        with _folder(plan) as folder:
            streams = replace(streams, new_epoch=newepoch.look(made, plan.seed, workers, folder, left))
    return streams


def _workers(made: FactoryLoader) -> int:
    """The user's number, within reason; two where the user has one or none."""
    return min(max(made.loader.get("num_workers") or 2, 2), _MOST_WORKERS)


def _begin(made: FactoryLoader, given: AsGiven, workers: int) -> Streams:
    options = [Option(name=name, value=_shown(value)) for name, value in made.loader.items()]
    size = made.loader.get("batch_size")
    return Streams(
        asked=made.loader.get("num_workers"),
        workers=workers,
        persistent=bool(made.loader.get("persistent_workers")),
        context=made.context or "fork",
        batches=given.batches,
        batch_size=size if isinstance(size, int) else None,
        refused=RefusedOptions(options=options, error=given.refused) if given.refused else None,
        new_epoch=Unread("absent", "its workers end with each epoch"),
    )


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str | int | float | type(None)) else type(value).__name__


def _loader_limit(random: RandomnessAnswer) -> float:
    """What healthy workers need at the very most: each starts, reads its first sample, then the others."""
    reads = loaded.EPOCHS * loaded.BATCHES * loaded.EACH * _MOST_WORKERS
    return _AT_LEAST_S + 4 * (loaded.EPOCHS * random.first_s + reads * random.item_s)


def _run(made: FactoryLoader, plan: DataPlan, random: RandomnessAnswer, workers: int, limit: float) -> _Loaded:
    """Two epochs of the user's loader, watched."""
    names = [dependence.generator for dependence in random.depends]
    with _folder(plan) as folder:
        watcher = GeneratorWatcher(made, Notebook(folder), states=names)

        def tell(epoch: int) -> None:
            newepoch.tell_sampler(made, epoch)
            newepoch.tell(made, epoch)

        course = LoaderCourse(workers=workers, tell=tell, stacks_s=max(0.2, limit - _STACKS_BEFORE_S))
        ran = child.run(lambda: loaded.epochs(made, watcher, course), Ran, limit)
        return _Loaded(ran, notes.read(folder))


@contextmanager
def _folder(plan: DataPlan) -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="ncclcheck-data-", dir=plan.scratch or None)
    try:
        Notebook(folder).epoch = 0
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_run(streams: Streams, random: RandomnessAnswer, run: _Loaded) -> Streams:
    content = [dependence.generator for dependence in random.depends if not dependence.order]
    ended = stops.of_loader(run.ran, run.diaries)
    if streams.context != loaded.FORK:  # what forked workers do wrong may be why the user spawns them
        ended = []
    return replace(
        streams,
        epochs=run.ran.value.epochs if run.ran.value else _begun(run.diaries),
        samples=len(notes.of(run.diaries, "end")),
        depends=Unread("absent", _NO_TIME) if random.cut_short else random.depends,
        shared=list(twins.shared(run.diaries, content)),
        repeated=list(twins.repeated(run.diaries, content)),
        reseeded=random.reseeded,
        frozen=random.frozen,
        made_alike=random.made_alike,
        stops=[*streams.stops, *ended],
    )


def _begun(diaries: Sequence[Diary]) -> int:
    """Epochs that were over when the loader was stopped: the last one that began was not."""
    return max((note.epoch for note in notes.of(diaries, "begin")), default=0)


def _one_worker_too(streams: Streams, run: _Loaded) -> Streams:
    """Errors that a single worker does not raise come of several at once."""
    errors = {_kind(stop.error) for stop in stops.of_loader(run.ran, run.diaries)}
    stopped = [
        replace(stop, together=stop.kind == "raised" and not stop.alone and _kind(stop.error) not in errors)
        for stop in streams.stops
    ]
    return replace(streams, stops=stopped)


def _alone_too(
    made: FactoryLoader, plan: DataPlan, stopped: Sequence[WorkerStop], random: RandomnessAnswer
) -> list[WorkerStop]:
    """Errors that the same reads raise outside of workers are not the workers'."""
    errors = {_kind(read.error) for reads in _passes(random.ended.value) for read in reads if read.error}
    raised = [stop for stop in stopped if stop.kind == "raised" and stop.index.isdecimal() and not made.iterable]
    if again := [int(stop.index) for stop in raised if _kind(stop.error) not in errors]:
        ended = child.run(lambda: visit(made, Visit([again[0], *again], plan.seed)), Visited, _AGAIN_S)
        errors |= {_kind(read.error) for reads in _passes(ended.value) for read in reads if read.error}
    return [replace(stop, alone=stop.alone or _kind(stop.error) in errors) for stop in stopped]


def _passes(visited: Visited | None) -> list[list[Read]]:
    return visited.passes if visited else []


def _kind(error: str) -> str:
    return error.partition(":")[0]


def _unjudged(streams: Streams, random: RandomnessAnswer) -> Streams:
    why = Unread(
        "absent",
        "no DataLoader takes it: it is no IterableDataset"
        if random.ended.ok
        else f"samples could not be read: {random.ended.how}",
    )
    return replace(streams, depends=why, shared=why, repeated=why)
