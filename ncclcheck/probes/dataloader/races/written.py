"""Files that reading a sample writes, seen by Python's audit hook in the child that reads."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from ncclcheck.probes.facts.data.content import WrittenFile

_MOST = 4000  # paths that are kept: chosen, a dataset that caches writes one a sample
_WRITING = os.O_WRONLY | os.O_RDWR
_COARSE = 5  # CLOCK_REALTIME_COARSE of time.h, which Python does not name
_TICK_S = 0.012  # longer than a tick of the kernel's coarse clock, which is 10 ms with CONFIG_HZ=100
_NOT_FILES = ("/dev/", "/proc/", "/sys/")


class FileWrites(msgspec.Struct):
    """Paths opened for writing, opened for reading, and given another name; whether a file lock was taken."""

    written: list[str] = msgspec.field(default_factory=list)
    read: list[str] = msgspec.field(default_factory=list)
    renamed: list[str] = msgspec.field(default_factory=list)
    locked: bool = False


def now() -> float:
    """The clock that stamps files, after a tick of it: what was written before has an earlier stamp."""
    time.sleep(_TICK_S)
    return time.clock_gettime(_COARSE)


def watch_writes() -> FileWrites:
    """From now on, in this process. What C code opens by itself is not seen."""
    seen = FileWrites()

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            _note_open(seen, arguments)
        elif event in ("os.rename", "os.link"):
            _add(seen.renamed, arguments[1])
        elif event in ("fcntl.flock", "fcntl.lockf"):
            seen.locked = True

    sys.addaudithook(hook)
    return seen


def _note_open(seen: FileWrites, arguments: tuple[object, ...]) -> None:
    path, _, flags = arguments
    if isinstance(flags, int) and flags & os.O_EXCL and flags & os.O_CREAT:
        seen.locked = True  # only one of all workers gets to write it
    elif isinstance(flags, int) and not flags & os.O_APPEND:
        _add(seen.written if flags & _WRITING else seen.read, path)


def _add(paths: list[str], path: object) -> None:
    if isinstance(path, str | bytes | os.PathLike) and len(paths) < _MOST:
        name = os.path.abspath(os.fsdecode(path))
        if not name.startswith(_NOT_FILES):
            paths.append(name)


def in_place(workers: Sequence[FileWrites], since: float) -> list[WrittenFile]:
    """Files that two workers or more read, and that one of them wrote meanwhile under this name, without a lock.

    A file that came by `os.replace` is whole from the first. since: `now` before any of them began.
    """
    if any(worker.locked for worker in workers):
        return []
    renamed = {path for worker in workers for path in worker.renamed}
    readers = Counter(path for worker in workers for path in set(worker.read) | set(worker.written))
    return [
        WrittenFile(path=path, readers=count, writers=sum(path in worker.written for worker in workers))
        for path, count in sorted(readers.items())
        if count > 1 and path not in renamed and _changed(path) >= since
    ]


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
