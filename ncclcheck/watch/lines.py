"""Whose line it was, of all in one pipe: a rank tells a checksum of each before it prints it."""

from __future__ import annotations

import os
import struct
import zlib
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

NAME = "lines"  # of the named pipe in a node's folder
_HEAD = struct.Struct("ii")  # pid, number of checksums that follow
_CHUNK = 65536  # bytes of a read: the capacity of a pipe. Source: pipe(7)
# Lines that were told of and have not come: a rank may print into a file of its own. A judgement: what a pipe of
# 64 KiB holds of checksums, for each of 8 ranks.
_MOST = 8 * 16_384
Run = tuple[int, int]  # pid, 0 for unknown; lines that follow each other


class RankLines:
    """The named pipe by which ranks tell, and what they have told."""

    def __init__(self, node: str) -> None:
        self._file, self._held = -1, b""
        self._told: dict[int, deque[tuple[int, int]]] = {}  # checksum -> serial number and pid of each
        self._order: deque[tuple[int, int]] = deque()
        self._serial = 0
        with suppress(OSError):  # a file system without named pipes: nobody tells
            path = os.path.join(node, NAME)
            os.mkfifo(path, 0o600)
            self._file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)

    def of(self, data: bytes) -> list[Run]:
        """Whose lines these are. data: whole lines, as they came."""
        self._hear()
        if not self._told:
            return []
        runs: list[Run] = []
        for line in data.split(b"\n")[: -1 if data.endswith(b"\n") else None]:
            pid = 0
            for piece in filter(None, line.split(b"\r")):
                pid = self._whose(zlib.crc32(piece))
            if not line.strip(b"\r") and runs:
                pid = runs[-1][0]  # an empty line goes with what stands above it
            runs[-1:] = [(pid, runs[-1][1] + 1)] if runs and runs[-1][0] == pid else [*runs[-1:], (pid, 1)]
        return runs if any(pid for pid, _ in runs) else []

    def _whose(self, crc: int) -> int:
        """The one that has told of it first, for ranks that print the same."""
        queue = self._told.get(crc)
        if queue is None:
            return 0
        _, pid = queue.popleft()
        if not queue:
            del self._told[crc]
        return pid

    def _hear(self) -> None:
        while self._file >= 0:
            try:
                data = os.read(self._file, _CHUNK)
            except OSError:
                break
            self._held += data
            self._take()

    def _take(self) -> None:
        while len(self._held) >= _HEAD.size:
            pid, count = _HEAD.unpack_from(self._held)
            end = _HEAD.size + 4 * count
            if not (0 < count <= _CHUNK and pid > 0):
                self._held = b""  # nobody of ours writes that
                return
            if len(self._held) < end:
                return
            self._add(pid, struct.unpack_from(f"{count}I", self._held, _HEAD.size))
            self._held = self._held[end:]

    def _add(self, pid: int, sums: Sequence[int]) -> None:
        for crc in sums:
            self._serial += 1
            self._told.setdefault(crc, deque()).append((self._serial, pid))
            self._order.append((crc, self._serial))
        while len(self._order) > _MOST:
            crc, serial = self._order.popleft()
            if (queue := self._told.get(crc)) is not None and queue[0][0] == serial:  # else it has come
                self._whose(crc)
