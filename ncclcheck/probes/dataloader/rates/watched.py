"""The user's dataset, collate function and worker_init_fn, each within one of ours that notes what happens."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from ncclcheck.probes.dataloader import ours
from ncclcheck.probes.dataloader.children import notes
from ncclcheck.probes.dataloader.children.inside import in_words, place_of
from ncclcheck.probes.dataloader.children.notes import Notebook
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.randomness import seeds
from ncclcheck.probes.dataloader.samples.fingerprint import leaves
from ncclcheck.probes.dataloader.samples.read.visit import private

OF_STREAM = 8  # samples of each worker and epoch
_WITH_STATES = 4  # samples of each worker and epoch whose generators are looked at
_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.Tensor)


class GeneratorWatcher:
    """What the three have in common. states: generators to look at; salt: each sample has seeds of its own."""

    def __init__(
        self, made: FactoryLoader, notebook: Notebook, *, states: Sequence[str] = (), salt: int | None = None
    ) -> None:
        self.made, self.notebook, self.states, self.salt = made, notebook, set(states), salt
        self.epoch, self.number, self.worker = -1, 0, 0
        self.kept: list[Any] = []
        self.own: dict[str, object] = {}

    def read(self, index: Any, sample: Callable[[], Any]) -> Any:
        """Read one sample, with notes before and after. Where it raises, the first one stands in for it."""
        with self.honest():
            return self._read(index, sample)

    @contextmanager
    def honest(self) -> Iterator[None]:
        """Note a defect of ours: to torch and to the loader it would be an error of the user's code."""
        try:
            yield
        except BaseException as error:
            if trace := ours.trace_of(error):
                self.notebook.write(notes.Note("defect", self.worker, self.epoch, 0.0, error=trace))
            raise

    def _read(self, index: Any, sample: Callable[[], Any]) -> Any:
        note = self._begin(index)
        try:
            value = sample()
        except StopIteration:
            self.notebook.write(notes.now("end", self.worker, self.epoch, -1, index))
            raise
        except Exception as error:
            note.event, note.error, note.place = "raised", in_words(error), place_of(error)
            self.notebook.write(note)
            if not self.kept or self.made.iterable:
                raise
            return self.kept[0]
        self.kept = self.kept or [value]
        self._end(note, value)
        return value

    def _begin(self, index: Any) -> notes.Note:
        epoch = self.notebook.epoch
        if epoch != self.epoch:
            self.epoch, self.number = epoch, 0
        info = get_worker_info()
        self.worker = info.id if info else 0
        note = notes.now("begin", self.worker, epoch, self.number, index)
        self.number += 1
        self.notebook.write(note)
        if self.salt is not None and isinstance(index, int):
            seeds.reseed(self.salt, index)
        if self._looks(note):
            note.before = self._states(look_anew=note.number == 0)
        return note

    def _end(self, note: notes.Note, sample: Any) -> None:
        note.event, note.at = "end", notes.now("end", 0, 0).at
        if self._looks(note):
            note.after = self._states(look_anew=note.number == 0)
        if self._looks(note) or self.salt is not None:
            note.digests = {path: leaf.identity for path, leaf in leaves(sample).items()}
        self.notebook.write(note)

    def _looks(self, note: notes.Note) -> bool:
        return bool(self.states) and note.number < _WITH_STATES

    def _states(self, *, look_anew: bool) -> dict[str, str]:
        """Those that are asked for. The first sample of an epoch may make new private ones."""
        common = seeds.states()
        if look_anew:
            self.own = private(self.made) if self.states - common.keys() else {}
        own = {path: seeds.digest_of(generator) for path, generator in self.own.items()}
        return {name: state for name, state in {**common, **own}.items() if name in self.states}


class _StandsIn:
    """To a loader's own code (`self.dataset.set_epoch(1)`) it has the attributes of the user's dataset."""

    watcher: GeneratorWatcher

    def __getattr__(self, name: str) -> Any:
        if name == "watcher" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.watcher.made.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        target = self if name == "watcher" else self.watcher.made.dataset
        object.__setattr__(target, name, value)


class Watched(_StandsIn, Dataset[Any]):
    """The user's dataset, read one by one."""

    def __init__(self, watcher: GeneratorWatcher) -> None:
        self.watcher = watcher

    def __getitem__(self, index: Any) -> Any:
        return self.watcher.read(index, lambda: self.watcher.made.dataset[index])

    def __len__(self) -> int:
        return len(self.watcher.made.dataset)


class WatchedBatches(Watched):
    """A dataset that reads whole batches itself."""

    def __getitems__(self, indices: Any) -> Any:
        return self.watcher.read(indices, lambda: self.watcher.made.dataset.__getitems__(indices))


class WatchedStream(_StandsIn, IterableDataset[Any]):
    """The user's IterableDataset, of which each worker reads the first few."""

    def __init__(self, watcher: GeneratorWatcher) -> None:
        self.watcher = watcher

    def __iter__(self) -> Iterator[Any]:
        stream = iter(self.watcher.made.dataset)
        for number in range(OF_STREAM):
            try:
                sample = self.watcher.read(number, lambda: next(stream))
            except StopIteration:
                return
            yield sample


def watched(watcher: GeneratorWatcher) -> Dataset[Any]:
    """What stands in for the user's dataset."""
    if watcher.made.iterable:
        return WatchedStream(watcher)
    own = getattr(type(watcher.made.dataset), "__getitems__", None)
    if watcher.salt is None and own is not None and not own.__module__.startswith("torch."):
        return WatchedBatches(watcher)
    return Watched(watcher)


class Collate:
    """The user's collate function. What it refuses is told elsewhere: here the epoch goes on."""

    def __init__(self, watcher: GeneratorWatcher, own: Callable[[Any], Any]) -> None:
        self.watcher, self.own, self.asked = watcher, own, False

    def __call__(self, samples: Any) -> Any:
        with self.watcher.honest():
            return self._collate(samples)

    def _collate(self, samples: Any) -> Any:
        book, watcher = self.watcher.notebook, self.watcher
        try:
            batch = self.own(samples)
        except Exception as error:
            note = notes.now("unstacked", watcher.worker, watcher.epoch)
            note.error, note.place = in_words(error), place_of(error)
            book.write(note)
            return None
        if not self.asked and (error_text := unsendable(batch)):
            note = notes.now("unsendable", watcher.worker, watcher.epoch)
            note.error = error_text
            book.write(note)
        self.asked = True
        return batch


class WatchedInit:
    """The user's worker_init_fn, which finds its own dataset in `get_worker_info()`."""

    def __init__(self, watcher: GeneratorWatcher, own: Callable[[int], Any] | None, seconds: float) -> None:
        self.watcher, self.own, self.seconds = watcher, own, seconds

    def __call__(self, worker: int) -> None:
        with self.watcher.honest():
            self._start(worker)

    def _start(self, worker: int) -> None:
        book = self.watcher.notebook
        book.stacks_after(self.seconds)
        note = notes.now("init", worker, book.epoch)
        book.write(note)
        info: Any = get_worker_info()
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=self.watcher.made.dataset
        )
        if self.own is None:
            return
        try:
            self.own(worker)
        except Exception as error:
            note.error, note.place = in_words(error), place_of(error)
            book.write(note)
            raise


class Short:
    """The first batches of the user's own sampler, with its attributes: the user's loader may ask for them."""

    def __init__(self, own: Any, most: int, each: int) -> None:
        self.own, self.most, self.each = own, most, each

    def __getattr__(self, name: str) -> Any:
        if name == "own" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.own, name)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.own):
            if number == self.most:
                return
            yield batch[: self.each] if isinstance(batch, Sequence) else batch

    def __len__(self) -> int:
        return self.most


def unsendable(batch: Any) -> str:
    """Why a batch could not be sent from a worker: torch only prints that, and the loader waits for ever."""
    for part in _parts(batch):
        if isinstance(part, torch.Tensor) and part.requires_grad and not part.is_leaf:
            return "RuntimeError: a tensor with a gradient history cannot be sent to another process"
        if not isinstance(part, _PLAIN):
            try:
                pickle.dumps(part)
            except Exception as error:
                return in_words(error)
    return ""


def _parts(batch: Any) -> Iterator[Any]:
    inner = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else None
    if inner is None:
        yield batch
    for part in list(inner or ())[:64]:
        yield from _parts(part)
