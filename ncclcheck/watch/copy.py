"""The copy of what a job prints: the first 8 MiB and the last 4 to 8, and whose each piece was."""

from __future__ import annotations

import os
import time

from ncclcheck.probes.box.journal import AGAIN, NEW, Journal
from ncclcheck.probes.facts.guard.secrets import masked
from ncclcheck.watch.lines import RankLines

_HEAD = 8 * 2**20  # bytes: the start, with its versions and settings
_TAIL = 4 * 2**20  # each of two files in turn: the end, which is what a job that dies is asked about
_TIMES = 2**20  # of the beginning twice as much, and each of two files in turn for the end
_LINE = 8192  # bytes of a line without an end that are held back to be masked in one piece


class Copy:
    """Lines of the job's output, without secrets. A full disk loses them, and never the job's own output."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._file, self._left, self._turn = os.open(os.path.join(node, "output.log"), NEW, 0o600), _HEAD, -1
        self._times = Journal(os.path.join(node, "output"), 2 * _TIMES)
        self._later: Journal | None = None
        self._lines = RankLines(node)
        self._held: dict[str, bytes] = {}
        self._at = 0

    def add(self, stream: str, data: bytes) -> None:
        """Some bytes of one stream, as they came."""
        whole = self._held.pop(stream, b"") + data
        end = whole.rfind(b"\n") + 1
        if len(whole) - end > _LINE:
            end = len(whole)
        if whole[end:]:
            self._held[stream] = whole[end:]
        if end:
            self._write(stream, whole[:end])

    def end(self) -> None:
        """What had no end of line."""
        for stream, data in self._held.items():
            self._write(stream, data)
        self._held = {}

    def _write(self, stream: str, data: bytes) -> None:
        clean = masked(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        try:
            if len(clean) > self._left:
                os.close(self._file)
                self._turn += 1
                name = os.path.join(self._node, f"output.{self._turn % 2}.log")
                self._file, self._left, self._at = os.open(name, AGAIN, 0o600), _TAIL, 0
            self._left -= os.write(self._file, clean)
        except OSError:
            return
        entry = {"t": round(time.time(), 3), "s": stream, "f": self._turn, "at": self._at, "n": len(clean)}
        if runs := self._lines.of(data):
            entry["p"] = runs
        self._at += len(clean)
        if not self._times.add(entry):
            self._later = self._later or Journal(os.path.join(self._node, "output"), _TIMES, turns=True)
            self._later.add(entry)
