"""Counters that ranks share with their agent: an mmap file with one slot a local rank.

A rank writes without a system call, so that counting progress costs nothing in a timed loop.
"""

from __future__ import annotations

import mmap
import struct
import time
from dataclasses import dataclass
from pathlib import Path

_SLOT = struct.Struct("<QQddQ")
_SIZE = 64  # bytes of a slot, of which 40 are used: a cache line, so that ranks do not slow each other down


@dataclass(frozen=True)
class Slot:
    """pid of the rank; ticks counted; monotonic times of the last tick and of the heartbeat thread.

    stepped: the ticks that were counted when the last step began.
    """

    pid: int
    ticks: int
    ticked: float
    beat: float
    stepped: int = 0


class Slots:
    """The file of one node. Create it in the agent, open it in the ranks."""

    def __init__(self, path: str, count: int, *, create: bool = False) -> None:
        if create:
            Path(path).write_bytes(bytes(_SIZE * count))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE * count)

    def read(self, index: int) -> Slot:
        """The counters as the rank of this local number last wrote them."""
        return Slot(*_SLOT.unpack_from(self._map, index * _SIZE))

    def writer(self, index: int, pid: int) -> Writer:
        """The slot of one rank, for writing."""
        return Writer(self._map, index * _SIZE, pid)


class Writer:
    """Writes the counters of one rank into its slot."""

    def __init__(self, memory: mmap.mmap, offset: int, pid: int) -> None:
        self._memory, self._offset, self._pid = memory, offset, pid
        self._ticks = self._stepped = 0
        self._ticked = time.monotonic()
        self.beat()

    def tick(self) -> None:
        """Count one unit of progress."""
        self._ticks += 1
        self._ticked = time.monotonic()
        self.beat()

    def step(self) -> None:
        """Count one unit of progress as the beginning of a new step."""
        self._stepped = self._ticks + 1
        self.tick()

    def beat(self) -> None:
        """Write the time (time.monotonic), so that the agent sees that the process runs at all."""
        now = time.monotonic()
        _SLOT.pack_into(self._memory, self._offset, self._pid, self._ticks, self._ticked, now, self._stepped)
