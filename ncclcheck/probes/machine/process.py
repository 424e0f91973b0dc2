"""The only place that starts a process. Every child has a time limit, its own session, and dies with us."""

from __future__ import annotations

# Before the first fork: it and logging have locks that a fork takes and releases. Where another thread imports
# them meanwhile, the fork only releases, and a thread that holds the lock fails ("release unlocked lock").
import concurrent.futures.thread  # noqa: F401
import contextlib
import ctypes
import os
import resource
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TypeVar

import msgspec
import psutil

from ncclcheck.probes.facts import Unread
from ncclcheck.probes.facts.guard.secrets import masked
from ncclcheck.probes.facts.live.processes import is_frozen

_PR_SET_PDEATHSIG = 1  # Source: linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36  # Source: linux/prctl.h
_MOST_OUTPUT_BYTES = 4 * 2**20  # of a child: chosen, a program that prints without end fills no memory
# State and place are two reads: a process that only waits for a disk moves on between them.
_LOOKS_FROZEN, _BETWEEN_LOOKS_S = 3, 0.005
_FROZEN_S = 1.0  # for SIGKILL to end what a control group of version 2 froze: chosen, it takes milliseconds
_OWN_FILES = 256  # of ncclcheck itself, generously
_libc = ctypes.CDLL(None, use_errno=True)
_not_ours: set[int] = set()
_Record = TypeVar("_Record", bound=msgspec.Struct)


@dataclass(frozen=True)
class Output:
    """What a finished process left: its exit status (negative: a signal) and the first 4 MiB of each stream."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class Stuck:
    """A process that SIGKILL did not end."""

    pid: int
    state: str
    wchan: str
    devices: str
    command: str


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends. Source: prctl(2)."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the reaper of all descendants, so that none escapes by a double fork. Source: prctl(2).

    Children that are there already came with an `exec` (`exec ncclcheck ...`): they are the user's, never killed.
    """
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with contextlib.suppress(psutil.Error):
        _not_ours.update(child.pid for child in psutil.Process().children(recursive=True))


def make_room(descriptors: int) -> int:
    """Let this process open so many files beside those that it has; as many as its hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = descriptors + _OWN_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return descriptors if soft == resource.RLIM_INFINITY else min(descriptors, soft - _OWN_FILES)


def leave_orphans() -> None:
    """Be no reaper any more: that lasts through exec, and the next program did not ask for it."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    control: bool = False,
    out: int | IO[bytes] = subprocess.PIPE,
    err: int | IO[bytes] = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start a child in its own session. `control` gives it a stdin pipe, and it must leave at its end.

    A child without a control channel gets SIGKILL when the thread that started it ends. Raises OSError.
    """
    return subprocess.Popen(
        list(argv),
        env=None if env is None else dict(env),
        cwd=cwd,
        stdout=out,
        stderr=err,
        stdin=subprocess.PIPE if control else subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=None if control else die_with_parent,  # noqa: PLW1509 - one loaded C function, no lock
    )


def run(
    argv: Sequence[str], seconds: float, *, env: Mapping[str, str] | None = None, most: int = _MOST_OUTPUT_BYTES
) -> Output | Unread:
    """Run a program to its end within a time limit; never raises, never waits longer than the limit + 1 s."""
    try:
        child = start(argv, env=env)
    except FileNotFoundError:
        return Unread("no_tool", f"{argv[0]} is not installed")
    except (OSError, ValueError) as error:
        return Unread("denied" if isinstance(error, PermissionError) else "broken", f"{argv[0]}: {error}")
    status, out, err = watch(child, seconds, most)
    if status is None:
        return Unread("timed_out", f"{' '.join(argv)[:80]} gave no answer in {seconds:g} s")
    return Output(status, out, err)


def records(child: subprocess.Popen[bytes], kind: type[_Record], name: str) -> SimpleQueue[_Record]:
    """What a child prints, a JSON record a line; a thread reads them, so that a wait for one has a limit."""
    queue: SimpleQueue[_Record] = SimpleQueue()

    def listen() -> None:
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            for line in child.stdout or ():
                queue.put(msgspec.json.decode(line, type=kind))

    threading.Thread(target=listen, daemon=True, name=name).start()
    return queue


def watch(
    child: subprocess.Popen[bytes], seconds: float, most: int = _MOST_OUTPUT_BYTES
) -> tuple[int | None, str, str]:
    """The exit status of a child and at most so many bytes of what it said; None where its time was over."""
    streams: list[bytearray] = [bytearray(), bytearray()]
    readers = [
        threading.Thread(target=_drain, args=(pipe, kept, most), daemon=True)
        for pipe, kept in zip((child.stdout, child.stderr), streams, strict=True)
    ]
    for reader in readers:
        reader.start()
    end = time.monotonic() + seconds
    status: int | None = None
    try:
        status = child.wait(seconds)
    except subprocess.TimeoutExpired:
        kill_tree(child.pid)
    for reader in readers:
        reader.join(max(0.1, end - time.monotonic()))
    out, err = (bytes(kept).decode(errors="backslashreplace") for kept in streams)
    return status, out, err


def watch_all(
    children: Sequence[subprocess.Popen[bytes]], given: bytes, seconds: float, most: int = _MOST_OUTPUT_BYTES
) -> list[tuple[int | None, str, str]]:
    """As `watch` of each, for many at once, each given the same on its stdin.

    One thread: those of a thousand children, each looking every 50 ms, took 40 s of CPU.
    """
    end = time.monotonic() + seconds
    kept: dict[int, bytearray] = {}
    left: dict[int, memoryview] = {}
    with selectors.DefaultSelector() as ready:
        for child in children:
            for pipe in (child.stdin, child.stdout, child.stderr):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                if pipe is child.stdin:
                    left[pipe.fileno()] = memoryview(given)
                    ready.register(pipe, selectors.EVENT_WRITE)
                else:
                    kept[id(pipe)] = bytearray()
                    ready.register(pipe, selectors.EVENT_READ)
        while ready.get_map() and (now := end - time.monotonic()) > 0:
            for key, _ in ready.select(now):
                into = kept.get(id(key.fileobj))
                more = _give(key.fd, left) if into is None else _take(key.fd, into, most)
                if not more:
                    ready.unregister(key.fileobj)
                    _close(key.fileobj)
    return [_ended(child, kept, end) for child in children]


def _give(descriptor: int, left: dict[int, memoryview]) -> bool:
    """Write some; whether there is more to write, and somebody to read it."""
    try:
        left[descriptor] = left[descriptor][os.write(descriptor, left[descriptor]) :]
    except BlockingIOError:
        return True
    except OSError:
        return False
    return bool(left[descriptor])


def _take(descriptor: int, kept: bytearray, most: int) -> bool:
    """Read some; whether there may be more."""
    try:
        chunk = os.read(descriptor, 2**20)
    except BlockingIOError:
        return True
    except OSError:
        return False
    kept += chunk[: most - len(kept)]
    return bool(chunk)


def _ended(
    child: subprocess.Popen[bytes], kept: Mapping[int, bytearray], end: float
) -> tuple[int | None, str, str]:
    """Exit status, stdout and stderr of a child; None where its time was over, and it is killed."""
    status: int | None = None
    try:
        status = child.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        kill_tree(child.pid)
    for pipe in (child.stdin, child.stdout, child.stderr):
        _close(pipe)
    out, err = (bytes(kept[id(pipe)]).decode(errors="backslashreplace") for pipe in (child.stdout, child.stderr))
    return status, out, err


def _close(pipe: object) -> None:
    with contextlib.suppress(OSError, ValueError):
        pipe.close()  # type: ignore[attr-defined]


def _drain(pipe: IO[bytes] | None, kept: bytearray, most: int) -> None:
    if pipe is None:
        return
    with contextlib.suppress(OSError, ValueError), pipe:
        while chunk := pipe.read1(65536):  # type: ignore[attr-defined]
            kept += chunk[: most - len(kept)]


def kill_tree(pid: int | None = None, seconds: float = 5.0) -> list[Stuck]:
    """SIGKILL a process and all its descendants (None: all of ours, not us); return what would not die.

    Repeats, for a dying parent may have forked meanwhile; a process in state D is abandoned and named, and soon
    where its control group is frozen: it dies when that is thawed.
    """
    begun = time.monotonic()
    end, soon = begun + seconds, begun + _FROZEN_S
    while victims := _victims(pid):
        for victim in victims:
            with contextlib.suppress(psutil.Error):
                victim.kill()
        _reap(victims)
        if (now := time.monotonic()) > end or (now > soon and all(held_state_of(v.pid) == "F" for v in victims)):
            return [_describe(victim) for victim in _victims(pid)]
        time.sleep(0.02)
    return []


def reap_all(seconds: float = 1.0) -> None:
    """Collect the exit statuses of all dead children, so that no zombie is left to others."""
    end = time.monotonic() + seconds
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)


def _victims(pid: int | None) -> list[psutil.Process]:
    try:
        top = psutil.Process(pid)
        family = top.children(recursive=True) + ([top] if pid is not None else [])
    except psutil.Error:
        return []
    return [process for process in family if process.pid not in _not_ours and _lives(process)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def _reap(victims: list[psutil.Process]) -> None:
    for victim in victims:
        with contextlib.suppress(OSError):
            os.waitpid(victim.pid, os.WNOHANG)


def _describe(process: psutil.Process) -> Stuck:
    command = ""
    with contextlib.suppress(psutil.Error):
        command = masked(" ".join(process.cmdline()))[:120] or process.name()
    return Stuck(process.pid, state_of(process.pid), waiting_in(process.pid), devices_of(process.pid), command)


def state_of(pid: int) -> str:
    """The state letter of /proc/PID/stat (R S D T t Z X), or "gone"."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return "gone"


def held_state_of(pid: int) -> str:
    """The same; F for a process that the freezer of its control group holds."""
    letter = state_of(pid)
    for _ in range(_LOOKS_FROZEN):
        if letter not in ("D", "S") or not is_frozen(letter, waiting_in(pid)) or state_of(pid) != letter:
            return letter
        time.sleep(_BETWEEN_LOOKS_S)
    return "F"


def waiting_in(pid: int) -> str:
    """The kernel function in which a process sleeps, where it may be read. Source: /proc/PID/wchan."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text(errors="replace").strip("0\n")
    except OSError:
        return ""


def devices_of(pid: int) -> str:
    """The device files that a process holds open, and where it stands. Source: /proc/PID/fd, /proc/PID/cwd."""
    files = []
    for link in ("cwd", *(f"fd/{number}" for number in _names(f"/proc/{pid}/fd"))):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/{link}")
            if link == "cwd" or (target.startswith("/dev/") and not target.startswith(("/dev/null", "/dev/pts"))):
                files.append(target)
    return ", ".join(dict.fromkeys(files))[:300]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def tail(path: str, most: int = 4000) -> str:
    """The end of a log file as text; empty where there is none."""
    try:
        with open(path, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - most))
            return log.read(most).decode(errors="backslashreplace").strip()
    except OSError:
        return ""
