"""How long a worker of the loader takes to start, and how much it is handed over by pickling."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from typing import Any

from torch.utils.data import DataLoader

from ncclcheck.probes.facts.training import LoaderWorkers, WorkerStart
from ncclcheck.probes.job.operations import barrier
from ncclcheck.probes.training.feed import Batch
from ncclcheck.probes.training.loop import TrainingSetting
from ncclcheck.probes.training.wraps.sharding import Unsupported

_LIMIT_S = 20.0  # for the first sample of one worker; pickling gets a quarter: chosen
# bytes of a pickle that is counted and not kept: chosen, the copy of each worker is then the finding
_MOST = 2**31
_LONGEST_ERROR = 200  # characters: chosen, the type and the last line


def seen(setting: TrainingSetting, _batch: Batch) -> LoaderWorkers:
    """Rank 0 tries; the others wait, so that the import of torch in the worker is not slowed down by them.

    Raises Unsupported for the built-in data, of which nothing is to be learned: a worker takes seconds to start.
    """
    if setting.builtin:
        raise Unsupported("the built-in data have no worker processes")
    workers = _tried(setting.feed.loader) if setting.context.rank == 0 else LoaderWorkers()
    barrier(setting.device)
    return workers


def _tried(loader: DataLoader[Any]) -> LoaderWorkers:
    used = _method(loader)
    size, seconds, error = _pickled(loader)
    methods = dict.fromkeys(["spawn"] if error == "" else [])
    if loader.num_workers:
        methods = dict.fromkeys([used, *methods])
    return LoaderWorkers(
        used=used,
        count=loader.num_workers,
        starts=[_start(loader, method) for method in methods],
        pickled=size,
        pickle_s=seconds,
        error=error,
    )


def _method(loader: DataLoader[Any]) -> str:
    context = loader.multiprocessing_context or multiprocessing.get_context()
    return str(context.get_start_method())


class _Counted:
    """A file that only counts what is written to it."""

    def __init__(self) -> None:
        self.size = 0
        self._until = time.monotonic() + _LIMIT_S / 4

    def write(self, data: Any) -> int:
        """Too much or too long ends it."""
        count = memoryview(data).nbytes
        self.size += count
        if self.size > _MOST or time.monotonic() > self._until:
            raise OverflowError(f"more than {self.size} bytes")
        return count


def _pickled(loader: DataLoader[Any]) -> tuple[int | None, float, str]:
    """Bytes, seconds, and what went wrong: of what a worker gets."""
    file, begin = _Counted(), time.perf_counter()
    error = ""
    try:
        pickle.Pickler(file).dump((loader.dataset, loader.collate_fn, loader.worker_init_fn))
    except OverflowError as over:
        error = str(over)
    except Exception as failed:  # the user's own __reduce__ may raise anything
        return None, time.perf_counter() - begin, _told(failed)
    return file.size, time.perf_counter() - begin, error


def _start(loader: DataLoader[Any], method: str) -> WorkerStart:
    """One worker, its first sample; killed where it does not come."""
    begin = time.perf_counter()
    iterator = None
    error = ""
    try:
        fresh: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_size=1,
            num_workers=1,
            collate_fn=_nothing,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=method,
            timeout=_LIMIT_S,
        )
        iterator = iter(fresh)
        next(iterator)
    except Exception as failed:  # whatever the user's dataset raises, it is what we tell
        error = _told(failed)
    seconds = time.perf_counter() - begin
    del iterator
    return WorkerStart(method=method, seconds=seconds, error=error)


def _nothing(_samples: Any) -> int:
    """A batch that costs nothing to send."""
    return 0


def _told(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:_LONGEST_ERROR]
