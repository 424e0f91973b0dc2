"""Datasets that tests examine: sound ones, with each legitimate kind of randomness and cache, and broken ones."""

# ruff: noqa: SIM115 - handles that stay open are what they are about

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import multiprocessing
import os
import queue
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

N = 300
ROW = 256  # bytes


def _file() -> str:
    path = tempfile.mktemp(".bin")
    np.arange(N * ROW // 4, dtype=np.int32).tofile(path)
    return path


def _row(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.int32)


class Plain(Dataset[Any]):
    def __init__(self) -> None:
        self.x = torch.arange(N * 16, dtype=torch.float32).view(N, 16)

    def __len__(self) -> int:
        return N

    def row(self, index: int) -> torch.Tensor:
        if not 0 <= index < N:
            raise IndexError(index)
        return self.x[index].clone()

    def __getitem__(self, index: int) -> Any:
        return self.row(index)


class Augmented(Plain):
    """By all three global generators."""

    def __getitem__(self, index: int) -> Any:
        noise = torch.randn(16) + float(np.random.rand()) + random.random()
        return {"image": self.row(index) + noise, "index": index}


class LazyGenerator(Plain):
    """Seeded in the worker from what DataLoader seeds: as the documentation recommends."""

    rng: np.random.Generator | None = None

    def __getitem__(self, index: int) -> Any:
        if self.rng is None:
            self.rng = np.random.default_rng(torch.initial_seed() % 2**32)
        return self.row(index).numpy() + self.rng.normal(size=16)


class OpensByPid(Plain):
    """The parent's handle is still there, and not used."""

    def __init__(self) -> None:
        super().__init__()
        self.path, self.files = _file(), dict[int, Any]()
        self[0]

    def __getitem__(self, index: int) -> Any:
        if os.getpid() not in self.files:
            self.files[os.getpid()] = open(self.path, "rb")
        self.files[os.getpid()].seek(index * ROW)
        return _row(self.files[os.getpid()].read(ROW))


class Pread(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.file: IO[bytes] = open(_file(), "rb")

    def __getitem__(self, index: int) -> Any:
        return _row(os.pread(self.file.fileno(), ROW, index * ROW))


class Guarded(Pread):
    """A shared offset behind a lock that all workers share; each worker's own buffer would get past the lock."""

    def __init__(self) -> None:
        super().__init__()
        self.file = open(_file(), "rb", buffering=0)
        self.lock = multiprocessing.Lock()

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            self.file.seek(index * ROW)
            return _row(self.file.read(ROW))


class AtomicCache(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()

    def __getitem__(self, index: int) -> Any:
        path = f"{self.folder}/{index}.npy"
        if not os.path.exists(path):
            with open(f"{path}.{os.getpid()}", "wb") as file:
                np.save(file, self.row(index).numpy())
            os.replace(f"{path}.{os.getpid()}", path)
        return np.load(path)


class Stamped(Plain):
    """A leaf that no seed controls, beside one that is settled."""

    def __getitem__(self, index: int) -> Any:
        return {"image": self.row(index), "read_at": time.time()}


class Unseeded(Plain):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor(list(uuid.uuid4().bytes))


class SharedCache(Plain):
    """multiprocessing.Manager, through a socket that every worker opens anew."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = multiprocessing.Manager()
        self.cache = self.manager.dict({0: self.x[0].numpy()})

    def __getitem__(self, index: int) -> Any:
        value = self.cache.get(index)
        if value is None:
            self.cache[index] = value = self.row(index).numpy()
        return torch.from_numpy(value)


class Logging(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.log = tempfile.mktemp(".log")

    def __getitem__(self, index: int) -> Any:
        with open(self.log, "a") as log:
            log.write(f"{index}\n")
        return self.row(index)


class MissingLabels(Plain):
    """An error that is swallowed on purpose; the sample is its own."""

    def __getitem__(self, index: int) -> Any:
        try:
            if index % 37 == 0:
                raise FileNotFoundError("no label")
            label = 1
        except FileNotFoundError:
            label = 0
        return self.row(index), label


class Zeros(Plain):
    """Zeros for what cannot be read."""

    def __getitem__(self, index: int) -> Any:
        try:
            if index % 37 == 5:
                raise OSError("truncated")
            return self.row(index)
        except OSError:
            return torch.zeros_like(self.row(0))


class Pooled(Plain):
    @functools.cached_property
    def pool(self) -> concurrent.futures.ThreadPoolExecutor:
        return concurrent.futures.ThreadPoolExecutor(3)

    def __getitem__(self, index: int) -> Any:
        return torch.stack(list(self.pool.map(self.row, [index, (index + 1) % N])))


class Stream(IterableDataset[Any]):
    """Sharded over workers, shuffled in a buffer."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        waiting: list[int] = []
        for index in range(info.id if info else 0, N, info.num_workers if info else 1):
            waiting.append(index)
            if len(waiting) > 8:
                yield torch.tensor([waiting.pop(random.randrange(len(waiting)))] * 4)
        yield from (torch.tensor([index] * 4) for index in waiting)


def opened_by_init() -> Any:
    return SeekAndRead(), {"num_workers": 2, "worker_init_fn": _open}


def _open(_worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    dataset.file = open(dataset.path, "rb")


class SeekAndRead(Plain):
    file: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.path = _file()

    def __getitem__(self, index: int) -> Any:
        self.file.seek(index * ROW)
        return _row(self.file.read(ROW))


class SharedOffset(SeekAndRead):
    def __init__(self) -> None:
        super().__init__()
        self.file = open(self.path, "rb")


class SharedConnection(Plain):
    """Of SQLite."""

    def __init__(self) -> None:
        super().__init__()
        self.db = sqlite3.connect(tempfile.mktemp(".db"))
        self.db.execute("create table rows (i integer primary key, v real)")
        self.db.executemany("insert into rows values (?, ?)", [(i, i / 2) for i in range(N)])
        self.db.commit()

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.db.execute("select v from rows where i = ?", (index,)).fetchone() * 4)


class SharedSocket(Plain):
    """Questions and answers over one connection to a server that is a process of its own."""

    def __init__(self) -> None:
        super().__init__()
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            ours.close()
            for line in theirs.makefile("rb"):
                theirs.sendall(np.full(16, int(line), np.int32).tobytes())
            os._exit(0)
        theirs.close()
        self.socket = ours
        self.answers = ours.makefile("rb")

    def __getitem__(self, index: int) -> Any:
        self.socket.sendall(b"%d\n" % index)
        return _row(self.answers.read(64))


class SharedDecoder(Plain):
    """Questions to a program that runs beside it, and its answers, over pipes."""

    def __init__(self) -> None:
        super().__init__()
        code = "import sys\nfor line in sys.stdin: print(*[int(line)] * 16, flush=True)"
        self.decoder = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __getitem__(self, index: int) -> Any:
        assert self.decoder.stdin
        assert self.decoder.stdout
        self.decoder.stdin.write(f"{index}\n")
        self.decoder.stdin.flush()
        return torch.tensor([int(word) for word in self.decoder.stdout.readline().split()])


class SharedScratch(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.scratch = torch.zeros(64).share_memory_()  # type: ignore[no-untyped-call]

    def __getitem__(self, index: int) -> Any:
        self.scratch.fill_(index)
        return (self.scratch * 2).clone()


class CacheInPlace(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()

    def __getitem__(self, index: int) -> Any:
        path = f"{self.folder}/{index}.pt"
        if not os.path.exists(path):
            torch.save(self.row(index), path)
        return torch.load(path)


class Counts(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        return self.row(index) * (self.count // 10)


class CountsTogether(Plain):
    """In memory that all workers share."""

    def __init__(self) -> None:
        super().__init__()
        self.count = multiprocessing.Value("i", 0, lock=False)

    def __getitem__(self, index: int) -> Any:
        self.count.value += 1
        return self.row(self.count.value % N)


class ChangesInPlace(Plain):
    def __getitem__(self, index: int) -> Any:
        return self.x[index].mul_(1.5).clone()


class ReturnsItsBuffer(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = torch.zeros(8)

    def __getitem__(self, index: int) -> Any:
        return self.buffer.fill_(index)


PAUSES = random.SystemRandom()  # which no seed sets: on a quiet machine threads would always come in one order


class ThreadsShareSelf(Plain):
    current = 0

    def slow_row(self, index: int) -> torch.Tensor:
        time.sleep(PAUSES.random() / 1000)
        self.current = index
        time.sleep(PAUSES.random() / 1000)
        return self.row(self.current)

    def __getitem__(self, index: int) -> Any:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return torch.stack(list(pool.map(self.slow_row, [(index + k) % N for k in range(4)])))


class WaitsForThread(Plain):
    """Of the process that made it."""

    def __init__(self) -> None:
        super().__init__()
        self.tickets: queue.Queue[int] = queue.Queue(1)
        threading.Thread(target=self._hand_out, name="tickets", daemon=True).start()

    def _hand_out(self) -> None:
        while True:
            self.tickets.put(1)

    def __getitem__(self, index: int) -> Any:
        self.tickets.get()
        return self.row(index)


class AnotherSample(Plain):
    def __getitem__(self, index: int) -> Any:
        try:
            if index % 29 == 3:
                raise OSError("bad file")
            return self.row(index)
        except OSError:
            return self[random.randrange(N)]


class NextSample(Plain):
    def __getitem__(self, index: int) -> Any:
        while True:
            try:
                if index % 29 == 3:
                    raise OSError("bad file")
                return self.row(index)
            except OSError:
                index += 1


class RarelyBroken(Plain):
    def __getitem__(self, index: int) -> Any:
        if index == 222:
            raise ValueError("corrupt")
        return self.row(index)


class RarelyCrashing(Plain):
    def __getitem__(self, index: int) -> Any:
        if index == 222:
            ctypes.string_at(0)
        return self.row(index)


class TooLong(Plain):
    def __len__(self) -> int:
        return N + 3


class TooShort(Plain):
    def __len__(self) -> int:
        return len(self.x) - 5


class Empty(Plain):
    def __len__(self) -> int:
        return 0


def crashes() -> None:
    ctypes.string_at(0)


def raises() -> None:
    raise KeyError("DATA_ROOT")


def ends() -> None:
    os._exit(3)
