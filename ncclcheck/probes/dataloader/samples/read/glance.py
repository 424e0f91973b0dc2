"""Reading samples in a forked child, in one order and under one seed; every process is a worker to user code."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from torch.utils.data._utils import worker as torch_worker

from ncclcheck.probes.dataloader.children import inside
from ncclcheck.probes.dataloader.children.notes import ReadingMark
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.randomness import seeds
from ncclcheck.probes.dataloader.samples.fingerprint import leaves

WARM = 977  # the salt of a read that does not count


class LeafValue(msgspec.Struct, frozen=True, array_like=True):
    """A leaf as it was read. digest: of type, shape and bytes."""

    digest: str
    brief: str
    dtype: str
    bytes: int


class SampleGlance(msgspec.Struct, frozen=True):
    """What one read gave: leaves by path, or what was raised."""

    leaves: dict[str, LeafValue] = {}
    error: str = ""
    place: str = ""


Pass = dict[int, SampleGlance]


@dataclass(frozen=True)
class ReadingOrder:
    """Which samples, in which order. warm: a sample read beforehand, so that what is made lazily is there.

    whole: a stream is read by one worker of one, so that nobody gets a part. reset: generators of the dataset's
    own are put back before every read. passes: how often all is read. seconds: nothing is begun after so long.
    """

    indices: Sequence[int]
    salt: int
    worker: int = 0
    workers: int = 1
    whole: bool = False
    warm: int | None = None
    reset: bool = False
    passes: int = 1
    seconds: float = 1e9


def be_worker(made: FactoryLoader, order: ReadingOrder) -> None:
    """Look like a worker of a DataLoader to user code. Raises what the user's worker_init_fn raises.

    Where workers start by spawn the dataset is from now on a copy through pickle, as theirs is.
    """
    if made.workers_unpickle:
        with contextlib.suppress(Exception):  # that it cannot be pickled is reported elsewhere
            made.dataset = pickle.loads(pickle.dumps(made.dataset))
    number, workers = (0, 1) if order.whole else (order.worker, order.workers)
    seed = order.salt + number
    info = torch_worker.WorkerInfo(id=number, num_workers=workers, seed=seed, dataset=made.dataset)
    torch_worker._worker_info = info
    seeds.reseed(order.salt, number)
    if init := made.loader.get("worker_init_fn"):
        init(number)


def read(
    made: FactoryLoader, order: ReadingOrder, mark: ReadingMark, gate: Callable[[], None] = lambda: None
) -> list[Pass]:
    """All passes, in this process, which is spent afterwards."""
    be_worker(made, order)
    source = SampleSource(made)
    if order.warm is not None:
        mark.at(order.warm, order.worker)
        seeds.reseed(WARM, 0)
        _read_one(source, order.warm)
    streams = GeneratorStates(made) if order.reset else None
    gate()
    end = time.monotonic() + order.seconds
    passes: list[Pass] = []
    for _ in range(order.passes):
        source.begin(order.salt)
        passes.append(dict(_read_all(source, order, mark, streams, end)))
    return passes


def _read_all(
    source: SampleSource, order: ReadingOrder, mark: ReadingMark, streams: GeneratorStates | None, end: float
) -> Iterator[tuple[int, SampleGlance]]:
    for position, index in enumerate(order.indices):
        if position and time.monotonic() > end:
            return
        mark.at(index, order.worker)
        if streams:
            streams.put_back()
        seeds.reseed(order.salt, index)
        sample = _read_one(source, index)
        if source.ended:
            return
        yield index, sample


def _read_one(source: SampleSource, index: int) -> SampleGlance:
    try:
        return sample_of(source.read(index))
    except Exception as error:
        return SampleGlance(error=inside.in_words(error), place=inside.place_of(error))


def sample_of(raw: Any) -> SampleGlance:
    """What can be compared of a sample."""
    return SampleGlance({
        path: LeafValue(leaf.identity, leaf.brief, leaf.dtype, leaf.bytes)
        for path, leaf in leaves(raw).items()
    })  # fmt: skip


class SampleSource:
    """A dataset of either kind, read by index; of a stream the index is only the position."""

    def __init__(self, made: FactoryLoader) -> None:
        self._dataset, self._iterable = made.dataset, made.iterable
        self._stream: Iterator[Any] | None = None
        self.ended = False

    def begin(self, salt: int) -> None:
        """A stream starts anew."""
        if self._iterable:
            seeds.reseed(salt, -1)
            self._stream, self.ended = iter(self._dataset), False

    def read(self, index: int) -> Any:
        """The sample; `ended` where the stream has no more."""
        if not self._iterable:
            return self._dataset[index]
        if self._stream is None:
            self._stream = iter(self._dataset)
        try:
            return next(self._stream)
        except StopIteration:
            self.ended = True
            return None


class GeneratorStates:
    """The dataset's own generators, as they are now."""

    def __init__(self, made: FactoryLoader) -> None:
        generators = seeds.private([made.dataset, made.loader.get("collate_fn")]).values()
        self._kept = [(generator, seeds.state_of(generator)) for generator in generators]

    def put_back(self) -> None:
        """To where they were."""
        for generator, state in self._kept:
            seeds.restore(generator, state)
