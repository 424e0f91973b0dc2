"""What a pickle holds, without keeping it: bytes for the pipe, tensors for shared memory; or why there is none."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Iterator, Mapping
from multiprocessing import context
from multiprocessing.reduction import ForkingPickler
from multiprocessing.synchronize import SemLock
from types import FunctionType, ModuleType
from typing import Any, cast

import torch

from ncclcheck.probes.dataloader.children.inside import in_words
from ncclcheck.probes.facts.data.resources import Pickled

_MOST_DEPTH = 4  # of containers and attributes: chosen, samples are seldom deeper; a cycle ends too
_MOST_VIEWS = 8  # parts of a sample, and items of one container: chosen
_MUCH = 8  # times its elements: as DAT022 judges a whole batch


class Weight:
    """Where a pickle goes; it is only counted."""

    def __init__(self) -> None:
        self.piped = 0

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self.piped += count
        return count


class Weigher(ForkingPickler):
    """Pickles as multiprocessing does for a worker; tensors are counted, and not moved into shared memory."""

    def __init__(self, *, keep_locks: bool) -> None:
        self.weight = Weight()
        self.storages: dict[int, int] = {}
        self.used = 0
        self._keep_locks = keep_locks
        super().__init__(self.weight, pickle.HIGHEST_PROTOCOL)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self._weigh(value)
            return str, ()
        if isinstance(value, SemLock) and not self._keep_locks:
            return str, ()  # made for the start method that is the default now, and would be for the next one
        return NotImplemented

    def _weigh(self, tensor: torch.Tensor) -> None:
        if tensor.requires_grad and not tensor.is_leaf:
            raise RuntimeError("a tensor that requires grad and is no leaf cannot be sent to another process")
        self.used += tensor.numel() * tensor.element_size()
        with contextlib.suppress(RuntimeError, NotImplementedError):  # sparse ones have no storage
            storage = tensor.untyped_storage()
            if storage.nbytes() and not storage.is_shared():
                self.storages[storage.data_ptr()] = storage.nbytes()


class _Popen:
    """Stands for the process being started: locks and queues are pickled for nobody else."""

    DupFd = staticmethod(lambda number: number)

    def duplicate_for_child(self, number: int) -> int:
        return number


def weigh(thing: Any, *, keep_locks: bool = True) -> Weigher:
    """Pickle it as if for a new process. Raises what pickling raises."""
    weigher = Weigher(keep_locks=keep_locks)
    context.set_spawning_popen(cast(Any, _Popen()))
    try:
        weigher.dump(thing)
    finally:
        context.set_spawning_popen(None)
    return weigher


def views(sample: Any) -> list[str]:
    """The parts of a sample, by the path in it, whose memory is much larger than they are."""
    return [name for name, tensor in _tensors("", sample, 0) if _drags(tensor)][:_MOST_VIEWS]


def _drags(tensor: torch.Tensor) -> bool:
    with contextlib.suppress(RuntimeError, NotImplementedError):  # sparse ones have no storage
        return tensor.untyped_storage().nbytes() > _MUCH * tensor.numel() * tensor.element_size()
    return False


def _tensors(name: str, value: Any, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth < _MOST_DEPTH and isinstance(value, Mapping | list | tuple):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value[:_MOST_VIEWS]):
            yield from _tensors(f"{name}.{key}".strip("."), part, depth + 1)


def pickled(what: str, thing: Any, *, keep_locks: bool) -> Pickled:
    """How large, or why not and which part of it."""
    begin = time.perf_counter()
    error = _error(thing, keep_locks)
    if isinstance(error, int):
        return Pickled(what=what, bytes=error, seconds=time.perf_counter() - begin)
    return Pickled(
        what=what, seconds=time.perf_counter() - begin, error=error, attribute=_culprit(thing, error, keep_locks)
    )


def _error(thing: Any, keep_locks: bool) -> int | str:
    """The bytes, or the error."""
    try:
        return weigh(thing, keep_locks=keep_locks).weight.piped
    except Exception as error:
        return in_words(error)


def _culprit(thing: Any, error: str, keep_locks: bool) -> str:
    """The attribute that raises this error, then its own, as deep as it goes: `tokenizer.lock`.

    Empty where none does: it is the class of the thing itself, a local one.
    """
    path: list[str] = []
    while len(path) < _MOST_DEPTH:
        bad = next((pair for pair in _parts(thing) if _error(pair[1], keep_locks) == error), None)
        if bad is None:
            break
        path.append(bad[0])
        thing = bad[1]
    return ".".join(path)


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    attributes = getattr(thing, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(thing, type | FunctionType | ModuleType):
        yield from attributes.items()
