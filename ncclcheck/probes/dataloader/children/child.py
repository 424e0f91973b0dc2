"""User code in forked children: what they answer, or how they ended. Hangs and crashes are observations."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import psutil

from ncclcheck.probes.dataloader import ours
from ncclcheck.probes.dataloader.children import inside
from ncclcheck.probes.dataloader.children.inside import ChildAnswer
from ncclcheck.probes.facts.run.course import signal_name
from ncclcheck.probes.machine.process import kill_tree

T = TypeVar("T")
Gate = Callable[[], None]

_MOST_TEXT = 20_000  # bytes of stacks that faulthandler wrote: chosen, some dozen threads
_STACKS_S = 0.15  # what a child gets to write its stacks before it is killed
_QUEUE_S = 0.2  # at the limit, to see who waits for a processor: chosen, some slices of a scheduler
_STARVED = 0.3  # of that time; on idle cores it is next to nothing, beside one other process a core a half
_REAP_S = 2.0  # a process in state D outlives SIGKILL; it is left behind


@dataclass(frozen=True)
class ChildEnd(Generic[T]):
    """How a child ended. error: `TypeError: text`; place: the user's own last frame, `file.py:12 in f`.

    signal, exit: how the process ended, 0 where it ended well. stacks: of all threads, at the limit or the crash.
    limit: the seconds that it had. busy_s: of the processor, which one that waits for ever does not use. queued:
    at the limit it, or a process below it, waited for a processor: it was slow, and does not stand still.
    """

    value: T | None = None
    answered: bool = False
    error: str = ""
    place: str = ""
    signal: int = 0
    exit: int = 0
    timed_out: bool = False
    stacks: str = ""
    limit: float = 0.0
    busy_s: float = 0.0
    queued: bool = False

    @property
    def ok(self) -> bool:
        """Whether `value` is what the work returned."""
        return self.answered and not self.error

    @property
    def how(self) -> str:
        """In words, for a sentence that begins with who: `ended by SIGSEGV`."""
        if self.ok:
            return "ended well"
        if self.error:
            return self.error
        if self.timed_out:
            return f"gave no answer in {self.limit:.3g} s"
        if self.signal:
            return f"ended by {signal_name(self.signal)}"
        return f"ended itself with exit status {self.exit}"


@dataclass
class _Child:
    """A running child, and what it has written so far."""

    pid: int
    pipe: int
    stacks: int
    output: bytearray
    exit: int | None = None
    ready: bool = False

    @property
    def over(self) -> bool:
        return self.exit is not None or self.output.endswith(b"\n")


def run(
    work: Callable[[], T],
    result: type[T],
    seconds: float,
    *,
    meanwhile: Callable[[], float] | None = None,
) -> ChildEnd[T]:
    """Fork, do the work in the child; its result comes back as JSON of type `result`.

    A Defect in the child is one here.
    meanwhile: called many times a second, returns the seconds left; a child so watched may take all memory.
    """

    def alone(gate: Gate) -> T:
        gate()
        return work()

    return _run([alone], result, seconds, meanwhile)[0]


def run_all(works: Sequence[Callable[[Gate], T]], result: type[T], seconds: float) -> list[ChildEnd[T]]:
    """Several children at once. Each calls its gate, which waits until all children are there (or have ended)."""
    return _run(works, result, seconds, None)


def _run(
    works: Sequence[Callable[[Gate], T]], result: type[T], seconds: float, meanwhile: Callable[[], float] | None
) -> list[ChildEnd[T]]:
    end = time.monotonic() + seconds
    closed, opened = os.pipe()
    children: list[_Child] = []
    try:
        for work in works:
            children.append(_fork(work, closed, opened, bounded=meanwhile is None))
        _watch(children, meanwhile or (lambda: end - time.monotonic()), opened)
        timed_out = [not child.over for child in children]
        queued = _queued([child.pid for child in children if not child.over])
        if any(timed_out):
            _ask_for_stacks([child for child in children if not child.over])
        return [
            _ended(child, result, late, seconds, late and queued)
            for child, late in zip(children, timed_out, strict=True)
        ]
    finally:
        for child in children:
            _end(child)
        for number in (closed, opened):
            _close(number)


def _fork(work: Callable[[Gate], T], closed: int, opened: int, *, bounded: bool) -> _Child:
    """The child starts with the random state of its parent: Python's own would be seeded anew at every fork."""
    ours, theirs = os.pipe()
    stacks = os.memfd_create("stacks")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    state, parent = random.getstate(), os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads at a fork are what some datasets die of
        pid = os.fork()
    if not pid:
        inside.be_child(parent, theirs, stacks, (ours, opened), bounded)
        random.setstate(state)
        inside.answer(work, theirs, closed)
    _close(theirs)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return _Child(pid, ours, stacks, bytearray())


def _watch(children: list[_Child], left: Callable[[], float], opened: int) -> None:
    """Until all have answered or ended, or the limit; the gate opens once all are ready."""
    waiting = True
    while not all(child.over for child in children) and (seconds := left()) > 0:
        pipes = [child.pipe for child in children if not child.over]
        for pipe in select.select(pipes, [], [], min(0.02, seconds))[0]:
            _hear(next(child for child in children if child.pipe == pipe))
        for child in children:
            if not child.over and _has_ended(child):
                _hear(child)
        if waiting and all(child.ready or child.over for child in children):
            os.write(opened, b"g" * len(children))
            waiting = False


def _hear(child: _Child) -> None:
    while child.pipe >= 0 and select.select([child.pipe], [], [], 0)[0]:
        chunk = os.read(child.pipe, 1 << 16)
        if not chunk:
            if not child.over and not _has_ended(child):
                time.sleep(0.005)  # its end of the pipe is closed: it is ending
            return
        if not child.ready:
            child.ready, chunk = True, chunk.removeprefix(inside.READY)
        child.output += chunk


def _has_ended(child: _Child) -> bool:
    if child.exit is None:
        try:
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            child.exit = os.waitstatus_to_exitcode(status) if pid else None
        except ChildProcessError:
            child.exit = 0  # the user's code reaps all children
    return child.exit is not None


def _ask_for_stacks(children: list[_Child]) -> None:
    for child in children:
        with contextlib.suppress(OSError):
            os.kill(child.pid, inside.STACKS)
    time.sleep(_STACKS_S)


def _ended(child: _Child, result: type[T], timed_out: bool, seconds: float, queued: bool) -> ChildEnd[T]:
    stacks = inside.without_ours(os.pread(child.stacks, _MOST_TEXT, 0).decode(errors="backslashreplace"))
    if child.output.endswith(b"\n"):
        try:
            answer = msgspec.json.decode(child.output, type=ChildAnswer)
            if answer.defect:
                raise ours.Defect(answer.defect)
            value = None if answer.error else msgspec.json.decode(answer.value, type=result)
        except msgspec.MsgspecError as error:
            raise ours.Defect(ours.shown(error)) from error
        return ChildEnd(value, True, answer.error, answer.place, limit=seconds)
    status = 0 if timed_out else (child.exit or 0)
    return ChildEnd(
        signal=max(0, -status), exit=max(0, status), timed_out=timed_out, stacks=stacks, limit=seconds,
        busy_s=_busy(child.pid) if timed_out else 0.0,
        queued=queued,
    )  # fmt: skip


def _end(child: _Child) -> None:
    """Kill what is left of it: its process group, and where it did not end by itself also those who left that."""
    if not _has_ended(child) and not child.output.endswith(b"\n"):
        kill_tree(child.pid, _REAP_S)
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    end = time.monotonic() + _REAP_S
    while not _has_ended(child) and time.monotonic() < end:
        time.sleep(0.002)
    for number in (child.pipe, child.stacks):
        _close(number)


def _busy(pid: int) -> float:
    """Processor seconds that a process has used. Source: proc_pid_stat(5), utime and stime."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _queued(pids: Sequence[int]) -> bool:
    """Whether one of them, or of their descendants, waits for a processor. Source: Linux, sched-stats.rst."""
    if not pids:
        return False
    below = list(pids)
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            below += [each.pid for each in psutil.Process(pid).children(recursive=True)]
    before = [_in_queue(pid) for pid in below]
    time.sleep(_QUEUE_S)
    return any(_in_queue(pid) - was > _STARVED * _QUEUE_S for pid, was in zip(below, before, strict=True))


def _in_queue(pid: int) -> float:
    """Seconds that it was ready to run and did not: the second number of /proc/PID/schedstat."""
    try:
        with open(f"/proc/{pid}/schedstat") as stat:
            return int(stat.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _close(number: int) -> None:
    with contextlib.suppress(OSError):
        os.close(number)
