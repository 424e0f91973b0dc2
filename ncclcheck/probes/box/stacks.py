"""Where each process of a job is: faulthandler writes it where it is ours; nobody else is sent a signal.

Standard library only, as the watcher.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ncclcheck.probes.box.journal import NEW
from ncclcheck.probes.box.processes import Process
from ncclcheck.probes.live.machine.proc import Proc

# Seconds for all to write: most need milliseconds, on a busy machine more; between looks; for all workers.
_ALL_S, _LOOK_S, _WORKERS_S = 2.0, 0.02, 5.0
_ONE_S = 0.5  # for one worker
_MOST = 65536  # bytes of one


class Stacks:
    """Of the processes of one job. number: of the signal that asks for them, 0 for none."""

    def __init__(self, box: str, number: int, proc: Proc) -> None:
        self._folder, self._number, self._proc = os.path.join(box, "fault"), number, proc
        self._workers: set[int] = set()  # whose file is not where they write

    def ask(self, alive: Mapping[int, Process], *, wait: bool = False) -> list[int]:
        """All that have a file of their own; who was asked. wait: until they have written."""
        before = {pid: self._size(pid) for pid in alive if pid not in self._workers}
        asked = [pid for pid in before if before[pid] >= 0 and self._catches(pid) and self._send(pid)]
        if wait:
            self._wait(asked, before, _ALL_S)
        return asked

    def ask_workers(self, alive: Mapping[int, Process]) -> None:
        """One by one: a forked process has its parent's descriptor, and writes into its parent's file."""
        until = time.monotonic() + _WORKERS_S
        for pid, process in alive.items():
            parent = alive.get(process.parent)
            if parent is None or parent.rank < 0 or time.monotonic() > until:
                continue
            before = self._size(parent.pid)
            if before < 0 or self._size(pid) >= 0 or not self._catches(pid) or not self._send(pid):
                continue
            self._wait([parent.pid], {parent.pid: before}, _ONE_S)
            self._workers.add(pid)
            with suppress(OSError):
                self._move(parent.pid, before, pid)

    def written(self, alive: Mapping[int, Process]) -> list[list[int]]:
        """pid and bytes of the files so far: what comes later is of another time."""
        return [[pid, size] for pid in alive if (size := self._size(pid)) > 0]

    def _move(self, parent: int, begin: int, pid: int) -> None:
        """What was written since into a file of its own; the parent's has what was its own."""
        file = os.open(self._path(parent), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            chunk = os.pread(file, _MOST, begin)
            os.ftruncate(file, begin)
        finally:
            os.close(file)
        if chunk:
            own = os.open(self._path(pid), NEW, 0o600)
            try:
                os.write(own, chunk)
            finally:
                os.close(own)

    def _wait(self, pids: Sequence[int], before: Mapping[int, int], seconds: float) -> None:
        """Until all have begun, and have written nothing more between two looks."""
        until, sizes = time.monotonic() + seconds, list[int]()
        while time.monotonic() < until:
            time.sleep(_LOOK_S)
            now = [self._size(pid) for pid in pids]
            if now == sizes and all(size > before[pid] for pid, size in zip(pids, now, strict=True)):
                return
            sizes = now

    def _send(self, pid: int) -> bool:
        try:
            os.kill(pid, self._number)
        except OSError:
            return False
        return True

    def _catches(self, pid: int) -> bool:
        caught = int(self._proc.text(str(pid), "status").partition("SigCgt:")[2].split("\n")[0] or "0", 16)
        return bool(self._number and caught >> (self._number - 1) & 1)

    def _path(self, pid: int) -> str:
        return os.path.join(self._folder, f"{pid}.txt")

    def _size(self, pid: int) -> int:
        """Of its file, -1 for none."""
        try:
            return os.stat(self._path(pid)).st_size
        except OSError:
            return -1
