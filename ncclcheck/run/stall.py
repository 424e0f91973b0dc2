"""Says on stderr when no rank of a job moves, and where they stand."""

from __future__ import annotations

import time
from collections.abc import Callable

from ncclcheck.base import wire
from ncclcheck.base.progress import Progress
from ncclcheck.probes.facts import RankState
from ncclcheck.reports.subjects.failures import lost
from ncclcheck.run.gather import Gathered


class Stall:
    """Hears all that is said of a job, and speaks up when nothing new has come for a while."""

    def __init__(
        self, gathered: Gathered, progress: Progress, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._gathered, self._progress, self._clock = gathered, progress, clock
        self._known: dict[int, tuple[object, ...]] = {}
        self._moved = clock()
        self._told = 0

    def heard(self, record: wire.FromAgent) -> None:
        """Agents look at their ranks all the time: only what differs from their last look is a move."""
        if isinstance(record, wire.RankReport):
            rank = record.state
            look = (rank.phase, rank.last_step, rank.ticks)
            if self._known.get(rank.rank) == look:
                return
            self._known[rank.rank] = look
        elif not isinstance(record, (wire.StepNotice, wire.RankResult, wire.JobEnded)):
            return
        self._moved, self._told = self._clock(), 0

    def tell(self) -> None:
        """Say for whom the others wait, once every Progress.patience_s without progress."""
        still = self._clock() - self._moved
        periods = int(still // self._progress.patience_s)
        if periods > self._told:
            self._told = periods
            self._progress.waiting(f"no progress for {still:.0f} s: {self._who()}")

    def _who(self) -> str:
        """The rank for which the others wait, where it is known, else the first of those that are not done."""
        late = lost.late(self._gathered.run(started_job=True, stopped_by=""))
        blamed = lost.ended(late) or lost.behind(late) or late
        return _standing(blamed[0], len(late)) if blamed else "no rank has started yet"


def _standing(rank: RankState, late: int) -> str:
    others = f" ({late} ranks are not done)" if late > 1 else ""
    return f"rank {rank.rank} on {rank.node} in {rank.last_step or 'its start'}{others}"
