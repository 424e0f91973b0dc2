"""Faults that only slow a rank down: stopped for moments, or short of CPU time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.lab.tools import until

_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
_PERIOD_US = 100_000


@contextmanager
def stuttering(pid: int, stopped_s: float = 0.02, running_s: float = 0.06) -> Iterator[None]:
    """The process is stopped for a moment, again and again."""
    over = threading.Event()

    def stutter() -> None:
        with suppress(ProcessLookupError):
            while not over.wait(running_s):
                os.kill(pid, signal.SIGSTOP)
                over.wait(stopped_s)
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stutter)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def short_of_cpu(pid: int, percent: int = 20) -> Iterator[None]:
    """The process gets this share of one core, by a cgroup of its own."""
    one_core = _PERIOD_US * percent // 100
    if (_V1 / "cpu.cfs_quota_us").exists():
        parent, name, quota = _V1, "cpu.cfs_quota_us", str(one_core)
    elif "cpu" in _text(_V2 / "cgroup.subtree_control").split():
        parent, name, quota = _V2, "cpu.max", f"{one_core} {_PERIOD_US}"
    else:
        pytest.skip("no cgroup here limits CPU time")
    group = parent / f"nclab-{pid}"
    group.mkdir()
    try:
        (group / name).write_text(quota)
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for left in _text(group / "cgroup.procs").split():
            with suppress(OSError):
                (parent / "cgroup.procs").write_text(left)
        group.rmdir()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@contextmanager
def group(controller: str, name: str, settings: Mapping[str, int]) -> Iterator[None]:
    """A control group of version 1 with these limits, for what is started `inside` of it."""
    folder = Path("/sys/fs/cgroup", controller, name)
    if not folder.parent.joinpath("cgroup.procs").exists():
        pytest.skip(f"no control group of version 1 limits {controller} here")
    folder.mkdir()
    try:
        for file, value in settings.items():
            (folder / file).write_text(str(value))
        yield
    finally:
        until(f"{folder} is empty", lambda: not _text(folder / "cgroup.procs"), seconds=20)
        folder.rmdir()


def inside(controller: str, name: str) -> tuple[str, ...]:
    """The words before a command that is to run in such a group."""
    return ("sh", "-c", f'echo $$ >/sys/fs/cgroup/{controller}/{name}/cgroup.procs; exec "$@"', "sh")
