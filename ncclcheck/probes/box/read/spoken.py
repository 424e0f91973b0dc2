"""What each process of a job printed last, out of the one copy of all that was printed."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator

import msgspec

from ncclcheck.probes.machine import files

_NAMES = ("output.jsonl", "output.0.jsonl", "output.1.jsonl")
_MOST_FILE = 16 * 2**20  # bytes of one file; the watcher's own bounds are below it
_MOST = 2 * 2**20  # bytes at the end of the output that are looked through
_LINES, _LONG = 3, 300  # last lines of a process, and characters of each: chosen for one screen
# How lines name their rank themselves: torch's own prefix and torchrun's, and NCCL's pid.
_RANK = re.compile(r"^\[(?:rank|default)(\d{1,7})\]:")
_NCCL = re.compile(r"^\S+:(\d{1,10}):\d+ (?:\[\w+\] )?NCCL ")

# A value that is not finite, as a program prints it.
NOT_FINITE = re.compile(r"(?i)(?<![\w.])[-+]?(?:nan|inf)(?![\w])")
_LOGGED = re.compile(r"[IWEF]\d{4} \d\d:|[ =\-\[<{(]|\w[\w.]*\.ChildFailedError|Root Cause|Failures:")


class OutputPiece(msgspec.Struct, frozen=True):
    """A line of output.jsonl. f: which of the files in turn, -1 the first; p: pid and lines of each run."""

    t: float
    f: int
    at: int
    n: int
    p: list[tuple[int, int]] = msgspec.field(default_factory=list)


class Last:
    """The last lines of each process, by pid or by the rank that a line tells; of a traceback its last."""

    def __init__(self, folder: str) -> None:
        self.by_pid: dict[int, deque[str]] = {}
        self.by_rank: dict[int, deque[str]] = {}
        self.odd_by_pid: dict[int, str] = {}  # the first line of each with a value that is not finite
        self.odd_by_rank: dict[int, str] = {}
        self.any: deque[str] = deque(maxlen=_LINES)
        self.loose: deque[str] = deque(maxlen=_LINES)  # of nobody known, and not of torchrun's log
        traced: set[tuple[int, int]] = set()  # who is within a traceback
        for pid, line in _lines(folder):
            rank, nccl = _RANK.match(line), _NCCL.match(line)
            whose = pid or int(nccl[1] if nccl else 0), int(rank[1]) if rank and not pid else -1
            words = line[rank.end() :].removeprefix(" ") if rank else line
            if words.startswith("Traceback (most recent call last)"):
                traced.add(whose)
            if whose in traced and (words.startswith((" ", "Traceback")) or not words):
                continue
            traced.discard(whose)
            self.any.append(line[:_LONG])
            if whose[0] or rank:
                odd, key = (self.odd_by_pid, whose[0]) if whose[0] else (self.odd_by_rank, whose[1])
                if key not in odd and NOT_FINITE.search(line):
                    odd[key] = line[:_LONG]
            if whose[0]:
                _keep(self.by_pid, whose[0], line)
            elif rank:
                _keep(self.by_rank, whose[1], line)
            elif not _LOGGED.match(line):
                self.loose.append(line[:_LONG])

    def of(self, pid: int, rank: int) -> list[str]:
        """The oldest one first; empty where none can be told from those of others."""
        return [*self.by_pid.get(pid, self.by_rank.get(rank, ()))]

    def odd_of(self, pid: int, rank: int) -> str:
        """The first line of it with a value that is not finite; empty for none."""
        return self.odd_by_pid.get(pid, self.odd_by_rank.get(rank, ""))


def _keep(kept: dict[int, deque[str]], whose: int, line: str) -> None:
    kept.setdefault(whose, deque(maxlen=_LINES)).append(line[:_LONG])


def _lines(folder: str) -> Iterator[tuple[int, str]]:
    """pid, 0 for unknown, and what stood in the line."""
    pieces = sorted(_pieces(folder), key=lambda part: (part.f, part.at))
    newest = pieces[-1].f if pieces else -1
    contents: dict[int, bytes] = {}
    left, wanted = _MOST, list[OutputPiece]()
    for piece in reversed(pieces):
        left -= piece.n
        if left < 0:
            break
        wanted.append(piece)
    for piece in reversed(wanted):
        if piece.f >= 0 and piece.f < newest - 1:
            continue  # written over
        if piece.f not in contents:
            contents[piece.f] = _content(
                os.path.join(folder, "output.log" if piece.f < 0 else f"output.{piece.f % 2}.log")
            )
        words = contents[piece.f][piece.at : piece.at + piece.n].decode(errors="backslashreplace").split("\n")
        whose = [pid for pid, count in piece.p for _ in range(min(count, len(words)))]  # min: whatever a box says
        for at, line in enumerate(words):
            if (shown := line.rstrip("\r").rpartition("\r")[2].rstrip()).strip():
                yield (whose[at] if at < len(whose) else 0), shown


def _pieces(folder: str) -> Iterator[OutputPiece]:
    for name in _NAMES:
        for line in _content(os.path.join(folder, name)).splitlines():
            try:
                piece = msgspec.json.decode(line, type=OutputPiece)
            except (msgspec.MsgspecError, RecursionError):
                continue
            if piece.at >= 0 and piece.n >= 0 and piece.f >= -1:
                yield piece


def _content(path: str) -> bytes:
    try:
        return files.content(path, _MOST_FILE) if os.path.isfile(path) and not os.path.islink(path) else b""
    except OSError:
        return b""
