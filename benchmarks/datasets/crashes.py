"""Defects that end or stop a worker: signals, endless loops, threads lost in the fork; and silent fallbacks."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from benchmarks.datasets.material import COUNT, Samples, sample, scattered, table


class SegfaultAtIndex(Samples):
    """A native decoder that reads address 0 at one index."""

    def __getitem__(self, index: int) -> Tensor:
        if index == 100:
            ctypes.string_at(0)
        return sample(index)


class AbortAtIndex(Samples):
    """A native library that gives up with abort()."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 31:
            os.abort()
        return sample(index), index % 10


class KilledForMemory(Samples):
    """A sample so large that the kernel kills its worker (SIGKILL, as the OOM killer sends)."""

    def __getitem__(self, index: int) -> Tensor:
        if index == 200:
            os.kill(os.getpid(), signal.SIGKILL)
        return sample(index)


class ExitInWorker(Samples):
    """A library that calls _exit, only in DataLoader's workers."""

    def __getitem__(self, index: int) -> Tensor:
        if get_worker_info() is not None and index % 16 == 15:
            os._exit(3)
        return sample(index)


class EndlessAtIndex(Samples):
    """A parser that never ends at one index."""

    def __getitem__(self, index: int) -> Tensor:
        while index == 128:
            pass
        return sample(index)


class WaitsForEver(Samples):
    """A download without a timeout that never answers."""

    def __getitem__(self, index: int) -> Tensor:
        if index == 9:
            threading.Event().wait()
        return sample(index)


class ImpossibleAllocation(Samples):
    """A broken header asks for a picture of a petabyte."""

    def __getitem__(self, index: int) -> Tensor:
        return torch.zeros(1 << 48) if index == 250 else sample(index)


class LockTakenTwice(Samples):
    """A lock between processes taken twice by the sample that loads another."""

    def __init__(self) -> None:
        self.lock = multiprocessing.Lock()

    def __getitem__(self, index: int) -> Tensor:
        with self.lock:
            return sample(index) + (self[index - 1] if index == 64 else 0)


class LockHeldAtFork(Samples):
    """A thread holds the lock at the moment of the fork; in the worker nobody gives it back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        threading.Thread(target=self._report, daemon=True).start()
        time.sleep(0.05)

    def _report(self) -> None:
        while True:
            with self.lock:
                time.sleep(0.5)

    def __getitem__(self, index: int) -> Tensor:
        with self.lock:
            return sample(index)


class ThreadPoolAtStart(Samples):
    """A thread pool used before the fork: its threads stay behind, its queue does not."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(2)
        self.pool.submit(sample, 0).result()

    def __getitem__(self, index: int) -> Tensor:
        return self.pool.submit(sample, index).result()


class PrefetchThread(Samples):
    """A thread that fills a queue, started before the fork."""

    def __init__(self) -> None:
        self.wanted: queue.Queue[int] = queue.Queue()
        self.ready: queue.Queue[Tensor] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            self.ready.put(sample(self.wanted.get()))

    def __getitem__(self, index: int) -> Tensor:
        self.wanted.put(index)
        return self.ready.get()


class PoolInSample(Samples):
    """A process pool inside a sample: workers are daemons and may have no children."""

    def __getitem__(self, index: int) -> Tensor:
        with multiprocessing.Pool(1) as pool:
            return sample(pool.apply(abs, (index,)))


class RandomFallback(Samples):
    """A broken file is silently replaced by a random other one."""

    def __init__(self) -> None:
        self.files = scattered()
        for index in range(5, COUNT, 20):
            self.files[index].write_bytes(b"")

    def __getitem__(self, index: int) -> Tensor:
        try:
            return torch.frombuffer(bytearray(self.files[index].read_bytes()), dtype=torch.float32)
        except ValueError:
            return self[random.randrange(COUNT)]


class NextFallback(Samples):
    """A broken file is silently replaced by the next."""

    def __init__(self) -> None:
        self.rows: list[Tensor | None] = list(table().unbind())
        for index in range(3, COUNT, 16):
            self.rows[index] = None

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        row = self.rows[index]
        return self[index + 1] if row is None else (row.clone(), index // 16)


class LastGoodFallback(Samples):
    """A broken file is silently replaced by the first sample, label included."""

    def __init__(self) -> None:
        self.files = scattered()
        for index in range(1, COUNT, 12):
            self.files[index].unlink()

    def __getitem__(self, index: int) -> dict[str, Any]:
        try:
            record = self.files[index].read_bytes()
        except OSError:
            index, record = 0, self.files[0].read_bytes()
        return {"image": torch.frombuffer(bytearray(record), dtype=torch.float32), "label": index % 10}


def two_workers_one_dies() -> DataLoader[Any]:
    """The factory gives a loader whose second worker is killed at its first batch."""
    return DataLoader(_SecondDies(), batch_size=8, num_workers=2)


class _SecondDies(Samples):
    def __getitem__(self, index: int) -> Tensor:
        info = get_worker_info()
        if info is not None and info.id == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return sample(index)
