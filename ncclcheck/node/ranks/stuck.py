"""Whether this rank stands still for good: at one place, and without work of its own or of its children."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from ncclcheck.base import raised

# Seconds at one place without work. In a collective a rank only waits for others: gloo's slowest exchange of the
# built-in models took 0.3 s on a loaded machine. Elsewhere it may wait for a disk or a download of the user's.
_IN_A_COLLECTIVE_S = 8.0
_ELSEWHERE_S = 60.0  # chosen, as above
_IDLE = 0.1  # of a core; a rank that waits in gloo used 0.01, its heartbeat and these looks included


class Still:
    """Whether a rank that makes no progress is stuck: `stack` is where it stands, `stuck` the answer."""

    def __init__(
        self,
        standing: Callable[[], list[str]] = raised.standing,
        spent: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._standing, self._spent, self._clock = standing, spent or _spent, clock
        self.stack: list[str] = []
        self.stuck = False
        self._begin()

    def look(self) -> bool:
        """Look once more; whether `stack` or `stuck` has changed since the last look."""
        before, self.stack = (self.stack, self.stuck), self._standing()
        seconds = self._clock() - self._since
        if self.stack != before[0] or self._spent() - self._had > max(1.0, seconds) * _IDLE:
            self._begin()
        else:
            self.stuck = seconds > (_IN_A_COLLECTIVE_S if waits(self.stack) else _ELSEWHERE_S)
        return before != (self.stack, self.stuck)

    def _begin(self) -> None:
        self.stuck, self._since, self._had = False, self._clock(), self._spent()


def waits(stack: list[str]) -> bool:
    """Whether a rank stands in a collective, or in a backward pass, where DDP waits for the others."""
    return bool(stack) and ":" not in stack[0] and stack[0] != "__next__()"


def _spent() -> float:
    """CPU seconds of this process and its children."""
    total = 0.0
    with suppress(psutil.Error):
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with suppress(psutil.Error):
                total += sum(process.cpu_times()[:2])
    return total
