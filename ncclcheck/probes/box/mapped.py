"""Files of data that ranks have in memory: one that is cut under them ends them by SIGBUS, without a word.

Standard library only, as the watcher.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable
from contextlib import suppress

from ncclcheck.probes.box.processes import Process
from ncclcheck.probes.live.machine.proc import Proc

_MOST_FILES = 32  # of one process: chosen, a data set has a few at a time
# What is mapped in every process: libraries, Python's own, tables of the locale.
_USUAL = re.compile(
    r"\.so(?:\.[\d.]+)?$|\.(?:mo|pyc|zip)$|^/(?:usr/|lib|dev/zero|memfd:|SYSV|anon_inode:)|\(deleted\)$"
)
_SHM = "/dev/shm"
_SMALL, _LEFT = 2**30, 0.05  # bytes of /dev/shm, a container's usual 64 MiB among them, and of it free. Chosen


class MappedFiles:
    """What each process had mapped when it was last looked at."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._known: dict[int, dict[str, int]] = {}

    def look(self, processes: Iterable[Process]) -> None:
        """At all ranks and their workers."""
        known = {}
        for process in processes:
            if process.rank >= 0:
                found = known[process.pid] = dict[str, int]()
                for line in self._proc.text(str(process.pid), "maps").splitlines():
                    words = line.split(maxsplit=5)
                    if len(words) == 6 and "x" not in words[1] and not _USUAL.search(words[5]):
                        start, _, end = words[0].partition("-")
                        last = int(words[2], 16) + int(end, 16) - int(start, 16)
                        if words[5] in found or len(found) < _MOST_FILES:
                            found[words[5]] = max(found.get(words[5], 0), last)
        self._known = known

    def cut(self, pid: int) -> str:
        """In words, what a process that SIGBUS has ended may have read or written in vain; empty for nothing."""
        for path, last in self._known.get(pid, {}).items():
            with suppress(OSError):
                size = os.stat(path).st_size
                if size <= last - mmap.PAGESIZE:
                    return f"{path} was cut while it was in its memory: {size} bytes now, up to {last} before"
        with suppress(OSError):
            room = os.statvfs(_SHM)
            size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
            if size and (size < _SMALL or free < _LEFT * size):
                return f"{_SHM} has {size >> 20} MiB in all, of which {free >> 20} were free just after"
        return ""
