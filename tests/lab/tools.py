"""Running ip, nft and their like: each with a time limit, and an error that says what they said."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO

import psutil

QUICK = 10.0


class LabError(RuntimeError):
    """The lab itself could not do what it was asked; never the fault of what is under test."""


def tool(argv: Sequence[str], *, text: str = "", seconds: float = QUICK) -> str:
    """Run a tool with `text` on its stdin; its stdout. Raises LabError with what it printed."""
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.strip()}\n{text}")
    return done.stdout


def ip(namespace: str, *lines: str) -> None:
    """Some lines of ip(8) in a namespace, at once."""
    tool(["ip", "-n", namespace, "-batch", "-"], text="\n".join(lines) + "\n")


def namespaces(prefix: str) -> list[str]:
    """The named network namespaces whose name starts with this."""
    names = (line.split()[0] for line in tool(["ip", "netns", "list"]).splitlines() if line)
    return [name for name in names if name.startswith(prefix)]


def pids_in(namespace: str) -> list[int]:
    """Every process of a namespace, whatever its session, group or parent."""
    return [int(pid) for pid in tool(["ip", "netns", "pids", namespace]).split()]


def kill_all(pids: Callable[[], Iterable[int]], seconds: float = QUICK) -> None:
    """SIGKILL until none is left: a process may fork while we look. Raises LabError naming what stays."""
    end = time.monotonic() + seconds
    while left := list(pids()):
        for pid in left:
            _kill(pid)
        if time.monotonic() > end:
            raise LabError(f"SIGKILL did not end {[_line(pid) for pid in left]}")
        time.sleep(0.02)


def until(what: str, true: Callable[[], bool], seconds: float = QUICK) -> None:
    """Wait until it is true. Raises LabError with `what` when the time is over."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise LabError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


def line_of(stream: IO[str] | None, seconds: float = QUICK) -> str:
    """The next line that a child says. Raises LabError where it says none."""
    assert stream is not None
    readable, _, _ = select.select([stream], [], [], seconds)
    line = stream.readline() if readable else ""
    if not line:
        raise LabError(f"a child {'has ended' if readable else f'said nothing in {seconds:g} s'}")
    return line.strip()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _line(pid: int) -> str:
    try:
        return f"{pid} {psutil.Process(pid).status()} {' '.join(psutil.Process(pid).cmdline())}"
    except psutil.Error:
        return str(pid)
