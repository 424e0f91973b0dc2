"""Which rank came late to the iterations, told by who waits least, and what its process did meanwhile.

All ranks leave a barrier at about the same time. From one barrier to the next, a rank waits for the others in the
operation and in the barrier; the rest is its own: that is by how much it delays them. The operation itself must be
counted as waiting: by its own way of working one rank leaves a broadcast, a ring or a slow link later than another
and waits so much less in the barrier that follows, which together is no lateness.

A process that is stopped, throttled or has no core while it waits seems to wait as well. A timer of its own, which
then comes late, tells; that time is no waiting.
"""

from __future__ import annotations

import random
import resource
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

from ncclcheck.probes.facts import Lateness
from ncclcheck.probes.job.context import Context
from ncclcheck.probes.job.timing import summary
from ncclcheck.probes.machine.host.cores import running

_KEPT = 4096  # iterations that are kept, by chance where there are more: chosen, 32 KiB, and quantiles to 2 %
# sleep of the thread that sees whether this process gets to run: chosen, 200 times a second cost next to no CPU
_EVERY_S = 0.005
_NOISE_S = 0.005  # what a sleep may be late for by timers and a scheduler's slice of some milliseconds: chosen
SCHEDSTAT = Path("/proc/self/schedstat")


class _Stalls:
    """Counts the seconds in which this process did not run although a timer of its own was due."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        """End the thread that watches."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.is_set():
            due = time.perf_counter() + _EVERY_S
            time.sleep(_EVERY_S)
            late = time.perf_counter() - due
            if late > _NOISE_S:
                self.seconds += late


class _Continued:
    """Counts SIGCONT, which a process that was stopped gets when it goes on; SIGSTOP itself no process sees."""

    def __init__(self) -> None:
        self.times = 0
        self._before: object = None
        with suppress(ValueError):  # not the main thread
            self._before = signal.signal(signal.SIGCONT, self._count)
            signal.siginterrupt(signal.SIGCONT, False)  # no system call of a library's is broken off

    def _count(self, *_: object) -> None:
        self.times += 1

    def stop(self) -> None:
        """Put the former handler of SIGCONT back."""
        with suppress(ValueError, TypeError):
            signal.signal(signal.SIGCONT, self._before)  # type: ignore[arg-type]


@dataclass
class _Usage:
    """What the process has used so far."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    runqueue_s: float = 0.0
    stalled_s: float = 0.0
    involuntary: int = 0

    @classmethod
    def now(cls, stalled_s: float) -> _Usage:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            time.perf_counter(),
            used.ru_utime + used.ru_stime,
            sum(runqueues().values()),
            stalled_s,
            used.ru_nivcsw,
        )

    def add(self, begin: _Usage, end: _Usage) -> None:
        for name in (field.name for field in fields(self)):
            used = max(0, getattr(end, name) - getattr(begin, name))  # a thread that ended takes its share along
            setattr(self, name, getattr(self, name) + used)


class LateRanks:
    """Collects, over all measured iterations, how much later than the first this rank was."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._stalls, self._continued = _Stalls(), _Continued()
        self._used = _Usage()
        self._late: list[float] = []
        self._running: list[float] = []
        self._seen = self._last = 0
        self._chance = random.Random(context.rank)  # which iterations are kept

    def stalled(self) -> float:
        """Seconds in which this process did not run, so far."""
        return self._stalls.seconds

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Context around the iterations that are timed."""
        begin = _Usage.now(self.stalled())
        yield
        self._used.add(begin, _Usage.now(self.stalled()))
        self._running += running()

    def add(self, own: Sequence[float], longest: Sequence[float], shortest: Sequence[float]) -> None:
        """Seconds that this rank waited in each iteration, and the longest and shortest wait of any rank."""
        for mine, most, least in zip(own, longest, shortest, strict=True):
            self._seen += 1
            self._last += mine == least
            if len(self._late) < _KEPT:
                self._late.append(most - mine)
            elif (place := self._chance.randrange(self._seen)) < _KEPT:
                self._late[place] = most - mine  # every iteration is kept with the same chance

    def fact(self) -> Lateness | None:
        """What was collected; None where nothing was."""
        self._stalls.stop()
        self._continued.stop()
        if not self._late:
            return None
        return Lateness(
            rank=self._context.rank,
            node=self._context.node,
            iterations=self._seen,
            last=self._last,
            late_us=summary(self._late),
            wall_s=self._used.wall_s,
            cpu_s=self._used.cpu_s,
            runqueue_s=self._used.runqueue_s if SCHEDSTAT.exists() else None,  # not in every kernel
            stalled_s=self._used.stalled_s,
            involuntary=self._used.involuntary,
            running=statistics.fmean(self._running) if self._running else None,
            continued=self._continued.times,
        )


def runqueues() -> dict[str, float]:
    """Seconds in which each thread of this process could run and had no core; gloo works in threads of its own."""
    waited: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError, ValueError, IndexError):
            waited[task.name] = int((task / "schedstat").read_bytes().split()[1]) / 1e9
    return waited
