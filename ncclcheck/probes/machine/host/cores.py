"""How much longer work takes here because other processes hold the cores.

A process that is ready to run and has no core is neither slow nor broken: a time limit that is meant for its work
counts the work, not the waiting.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")
_LOADAVG = Path("/proc/loadavg")
_Spent = dict[str, tuple[int, int]]


class Cores:
    """How short of cores this process is, from the making of this on."""

    def __init__(self, tasks: Path = _TASKS) -> None:
        self._tasks = tasks
        self._begun = self._spent()

    def waited(self) -> float:
        """The share of the time in which its threads wanted a core that they had none."""
        return 1.0 - 1.0 / self.slowdown()

    def waited_s(self) -> float:
        """Seconds in which its threads wanted a core and had none, summed over threads."""
        spent = self._spent()
        return sum(max(0, off - self._begun.get(task, (0, 0))[1]) for task, (_, off) in spent.items()) / 1e9

    def slowdown(self) -> float:
        """The time in which its threads wanted a core over that in which they had one; 1: none was missed."""
        ran = waited = 0
        for task, (on, off) in self._spent().items():
            before = self._begun.get(task, (0, 0))
            ran += max(0, on - before[0])
            waited += max(0, off - before[1])
        return (ran + waited) / ran if ran else 1.0

    def _spent(self) -> _Spent:
        """Of each thread nanoseconds on a core, and runnable without one; nothing where the kernel is silent."""
        times: _Spent = {}
        with suppress(OSError):
            for task in self._tasks.iterdir():
                with suppress(OSError, ValueError, IndexError):
                    ran, waited = (task / "schedstat").read_bytes().split()[:2]
                    times[task.name] = int(ran), int(waited)
        return times


def running(loadavg: Path = _LOADAVG) -> list[float]:
    """Threads of the whole machine that could run at this moment, for each core; empty where it is not told."""
    with suppress(OSError, ValueError, IndexError):
        return [int(loadavg.read_bytes().split()[3].split(b"/")[0]) / (os.cpu_count() or 1)]
    return []
