"""A file in the working directory, by which nodes find out whether they stand in the same one.

A child does all that touches the directory, for a dead file server holds whoever asks it. The child removes its
file when its stdin ends, so also when we are killed, and after a minute in any case.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

import msgspec

from ncclcheck.probes.facts import Door, Marks, Unread
from ncclcheck.probes.machine import process
from ncclcheck.probes.reach.measure import tested

# A file is there in milliseconds, but for a loaded disk, or a child that gets no core: with 12 other processes on
# 2 cores one second was too short. Less than the launcher waits for a door.
_PATIENCE_S = 5.0
_OURS = re.compile(r"\.ncclcheck-[0-9a-f]{32}")
# Says {"took": s} or {"refused": why}; then for a line of names {"seen": [...]} or {"failed": why}. Whoever asks
# a network file system for a name that is not there gets the same answer for a while: the second time it lists.
_CHILD = """import itertools, json, os, signal, sys, time
folder, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
signal.signal(signal.SIGALRM, lambda *_: sys.exit())
signal.alarm(60)
def there(name):
    try:
        return bool(os.lstat(os.path.join(folder, name)))
    except FileNotFoundError:
        return False
def look(names):
    end = time.monotonic() + seconds
    seen = {name for name in names if there(name)}
    while len(seen) < len(names) and time.monotonic() < end:
        time.sleep(seconds / 5)
        with os.scandir(folder) as listed:
            seen.update(names.intersection(one.name for one in itertools.islice(listed, 100000)))
    return sorted(seen)
def tell(**said):
    print(json.dumps(said), flush=True)
mine = os.path.join(folder, name)
begun = time.monotonic()
try:
    os.close(os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    tell(took=time.monotonic() - begun)
except OSError as error:
    mine = ""
    tell(refused=error.strerror)
try:
    for line in sys.stdin:
        try:
            tell(seen=look(set(line.split())))
        except OSError as error:
            tell(failed=error.strerror)
finally:
    if mine:
        os.unlink(mine)"""


class _MarkContent(msgspec.Struct):
    took: float | None = None
    refused: str | None = None
    seen: list[str] | None = None
    failed: str | None = None


class MarkFile:
    """A file of this node in the working directory, from its making until `close`."""

    def __init__(self, folder: str | None = None, *, look_s: float = 1.0, patience_s: float = _PATIENCE_S) -> None:
        """look_s: for files that are not there yet; patience_s: for each answer of the file system."""
        self._name = f".ncclcheck-{secrets.token_hex(16)}"
        self._said: SimpleQueue[_MarkContent] = SimpleQueue()
        self._child: subprocess.Popen[bytes] | None = None
        self._nodes: dict[str, str] = {}
        self._written: float | Unread = Unread("broken", "no child process could be started")
        self._folder, self._patience_s = folder or "", patience_s
        try:
            self._folder = folder or os.getcwd()
            argv = [sys.executable, "-I", "-S", "-c", _CHILD, self._folder, self._name, str(look_s)]
            self._child = process.start(argv, control=True, err=subprocess.DEVNULL)
        except FileNotFoundError:
            self._written = Unread("absent", "the working directory was deleted")
            return
        except OSError as error:
            self._written = Unread("broken", f"working directory: {error.strerror or error}")
            return
        self._said = process.records(self._child, _MarkContent, "mark")

    def file(self) -> str:
        """The name of the file once it is there; empty where it could not be made in time."""
        if self._child is not None:
            self._written = self._when_written()
        return "" if isinstance(self._written, Unread) else self._name

    def _when_written(self) -> float | Unread:
        try:
            report = self._said.get(timeout=self._patience_s)
        except Empty:
            return Unread("timed_out", f"a file in {self._folder} was not made in {self._patience_s:g} s")
        if report.took is not None:
            return round(report.took, 4)
        return Unread("denied", f"no file can be made in {self._folder}: {report.refused}")

    def look(self, me: Door, doors: Sequence[Door]) -> None:
        """Begin to look for the files of those that this node tries."""
        with suppress(ValueError):
            self._nodes = {door.file: door.name for door in tested(me, doors) if _OURS.fullmatch(door.file)}
        stuck = isinstance(self._written, Unread) and self._written.kind == "timed_out"
        if self._child is not None and self._child.stdin is not None and not stuck:
            with suppress(OSError, ValueError):
                self._child.stdin.write(" ".join(self._nodes).encode() + b"\n")
                self._child.stdin.flush()

    def marks(self) -> Marks | Unread:
        """Whose files are there; to be asked after `look`."""
        if isinstance(self._written, Unread) and self._written.kind != "denied":
            return self._written
        try:
            report = self._said.get(timeout=self._patience_s)
        except Empty:
            return Unread(
                "timed_out", f"files in {self._folder} could not be looked for in {self._patience_s:g} s"
            )
        if report.seen is None:
            return Unread("broken", f"files in {self._folder} could not be looked for: {report.failed}")
        return Marks(
            path=self._folder,
            written_s=self._written,
            seen=[node for name, node in self._nodes.items() if name in report.seen],
            missing=[node for name, node in self._nodes.items() if name not in report.seen],
        )

    def close(self, seconds: float = 0.5) -> None:
        """Have the file removed; a child that waits for its file server is not waited for."""
        if self._child is not None:
            with suppress(OSError, ValueError, subprocess.TimeoutExpired):
                if self._child.stdin is not None:
                    self._child.stdin.close()
                self._child.wait(seconds)
