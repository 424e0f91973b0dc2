"""What workers write down as they go, one file a process: it outlives a crash, and no pipe fills up."""

from __future__ import annotations

import faulthandler
import mmap
import os
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field

from ncclcheck.probes.dataloader.ours import Defect

Event = Literal["init", "begin", "end", "raised", "batch", "unstacked", "unsendable", "defect"]

_MOST_STACK = 4000  # characters: chosen, some dozen frames of each thread
_MARK = struct.Struct("qqdd")
_MOST_MARKED = 256  # children that read at once: chosen, more workers than any node has cores for


class Note(Struct, omit_defaults=True):
    """One event in one worker. number: of the sample within this worker and epoch. at: time.monotonic().

    before, after: states of generators around a sample; digests: of its leaves; error, place: of what raised; of
    a defect of ours its traceback.
    """

    event: Event
    worker: int
    epoch: int
    at: float
    number: int = 0
    index: str = ""
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    error: str = ""
    place: str = ""


class ReadingMark:
    """Which sample each child reads, where its parent sees it, whatever becomes of the child."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _MOST_MARKED * _MARK.size)

    def at(self, index: int, worker: int = 0) -> None:
        """The child begins this sample now."""
        _, count, first, _ = self._of(worker)
        now = time.monotonic()
        _MARK.pack_into(self._memory, worker * _MARK.size, index, count + 1, first if count else now, now)

    def last(self, worker: int = 0) -> int | None:
        """The sample that was begun last; None: none was."""
        index, count, _, _ = self._of(worker)
        return index if count else None

    def count(self, worker: int = 0) -> int:
        """How many samples were begun."""
        return self._of(worker)[1]

    def usual(self, worker: int = 0) -> float | None:
        """Seconds that a sample took on average before the last one."""
        _, count, first, last = self._of(worker)
        return (last - first) / (count - 1) if count > 1 else None

    def clear(self) -> None:
        """Nobody has begun."""
        self._memory[:] = bytes(len(self._memory))

    def _of(self, worker: int) -> tuple[int, int, float, float]:
        """Index, how many were begun, and when the first and the last one (time.monotonic())."""
        index, count, first, last = _MARK.unpack_from(self._memory, worker * _MARK.size)
        return index, count, first, last


class Notebook:
    """Where notes go. The epoch stands in a file, so that workers that live on know it too."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._pid = 0
        self._file = -1
        self._epoch = -1

    @property
    def epoch(self) -> int:
        """The epoch that the loader is in."""
        self._open()
        return int(os.pread(self._epoch, 8, 0) or b"0")

    @epoch.setter
    def epoch(self, number: int) -> None:
        Path(self.folder, "epoch").write_text(str(number))

    def write(self, note: Note) -> None:
        """One line, with one system call."""
        self._open()
        os.write(self._file, msgspec.json.encode(note) + b"\n")

    def stacks_after(self, seconds: float) -> None:
        """Have the stacks of this process written down at a crash, and after so long."""
        file = os.open(f"{self.folder}/{os.getpid()}.stack", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        faulthandler.disable()  # else `enable` leaves torch's handlers in its place
        faulthandler.enable(file)
        faulthandler.dump_traceback_later(seconds, file=file)

    def _open(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            path = f"{self.folder}/{self._pid}.notes"
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._epoch = os.open(f"{self.folder}/epoch", os.O_RDONLY | os.O_CLOEXEC)

    def __getstate__(self) -> dict[str, object]:
        return {"folder": self.folder, "_pid": 0, "_file": -1, "_epoch": -1}


class Diary(Struct):
    """What one process wrote, and its stacks."""

    pid: int
    notes: list[Note]
    stack: str = ""

    @property
    def open(self) -> Note | None:
        """The sample that was begun and not ended."""
        last = self.notes[-1] if self.notes else None
        return last if last and last.event == "begin" else None


def read(folder: str) -> list[Diary]:
    """All that was written; half a line at a crash is left out. Raises Defect where one was noted."""
    diaries = [_diary(path) for path in sorted(Path(folder).glob("*.notes"))]
    for note in of(diaries, "defect"):
        raise Defect(note.error)
    return diaries


def _diary(path: Path) -> Diary:
    lines = path.read_bytes().split(b"\n")[:-1]
    stack = path.with_suffix(".stack")
    text = stack.read_text(errors="backslashreplace")[:_MOST_STACK] if stack.exists() else ""
    return Diary(int(path.stem), [msgspec.json.decode(line, type=Note) for line in lines], text)


def of(diaries: Iterable[Diary], event: Event) -> list[Note]:
    """The notes of one kind, by time."""
    return sorted((note for d in diaries for note in d.notes if note.event == event), key=lambda note: note.at)


def now(event: Event, worker: int, epoch: int, number: int = 0, index: object = "") -> Note:
    """A note of this moment."""
    return Note(event, worker, epoch, time.monotonic(), number, str(index)[:40])
