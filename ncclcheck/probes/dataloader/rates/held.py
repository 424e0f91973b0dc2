"""For how much of a read it holds a lock that workers share: of multiprocessing, or on a file."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_UN
from typing import Any

from ncclcheck.probes.dataloader.samples.graph import walk
from ncclcheck.probes.facts.data.speed import Held

_MOST = 3  # locks in a finding, the longest held: chosen


class Locks:
    """Watches this process, from `watched` until its end. seconds: that each lock was held, by its name."""

    def __init__(self, dataset: Any) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._since: dict[str, float] = {}
        self._names: dict[int, str] = {}
        self._watching = False
        for path, value in walk(dataset):
            if type(value).__module__ == "multiprocessing.synchronize" and hasattr(value, "_semlock"):
                self._watch(path, value)
        sys.addaudithook(self._audit)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """As long as samples are read."""
        self._watching = True
        try:
            yield
        finally:
            self._watching = False
            for name in [*self._since]:
                self.left(name)

    def taken(self, name: str) -> None:
        self._since.setdefault(name, time.perf_counter())

    def left(self, name: str) -> None:
        if (since := self._since.pop(name, None)) is not None:
            self.seconds[name] += time.perf_counter() - since

    def share(self, whole: float) -> list[Held]:
        """Of so many seconds of reading, the largest first."""
        helds = [
            Held(lock=name[:200], share=min(1.0, seconds / whole))
            for name, seconds in self.seconds.items()
            if whole
        ]
        return sorted(helds, key=lambda lock: -lock.share)[:_MOST]

    def _watch(self, name: str, lock: Any) -> None:
        seen = _SeenSemaphore(self, name, lock._semlock)
        lock._semlock, lock.acquire, lock.release = seen, seen.acquire, seen.release

    def _audit(self, event: str, given: tuple[Any, ...]) -> None:
        """Locks on files, by the path of the descriptor. One that is closed is left with the next read."""
        if not self._watching or event not in ("fcntl.flock", "fcntl.lockf"):
            return
        number, operation = int(given[0]), int(given[1])
        if operation & LOCK_UN:
            self.left(self._names.get(number, ""))
        elif operation & LOCK_EX:
            with suppress(OSError):
                self._names[number] = os.readlink(f"/proc/self/fd/{number}")
                self.taken(self._names[number])


class _SeenSemaphore:
    """A lock's semaphore that says when it is taken and left."""

    def __init__(self, locks: Locks, name: str, inner: Any) -> None:
        self._locks, self._name, self._inner = locks, name, inner

    def acquire(self, *given: Any, **named: Any) -> bool:
        if got := bool(self._inner.acquire(*given, **named)):
            self._locks.taken(self._name)
        return got

    def release(self) -> None:
        self._inner.release()
        if not self._inner._is_mine():
            self._locks.left(self._name)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
