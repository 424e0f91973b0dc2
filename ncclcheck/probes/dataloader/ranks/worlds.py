"""A world of emulated ranks: forked from a process without the user's code, or in interpreters of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from ncclcheck.probes.dataloader.children import child
from ncclcheck.probes.dataloader.children.interpreter import Interpreter
from ncclcheck.probes.dataloader.ours import Defect
from ncclcheck.probes.dataloader.ranks.agreement import index_map
from ncclcheck.probes.dataloader.ranks.rank_view import view
from ncclcheck.probes.dataloader.ranks.streams.streams_shared import stream
from ncclcheck.probes.dataloader.views import EmulatedRank, RankView
from ncclcheck.probes.facts.data.sharding import Cause, IndexMap
from ncclcheck.probes.job.context import DataPlan

_READING_S = 0.4  # for the samples of one emulated rank: chosen
_MOST_PRESSURE = 8.0  # chosen
_TO_MEET_S = 3.0  # an interpreter that imports torch anew takes that long on a busy machine
_LEAST_S = 1.0  # a world of emulated ranks needs this to import and to meet: chosen


@dataclass
class World:
    """So many ranks of one plan. end: time.monotonic() at which the looks are to be over.

    interpreter: one that is ready; where there is none (any more), a rank that is to be fresh starts its own.
    """

    plan: DataPlan
    size: int
    folder: str
    end: float
    interpreter: Interpreter | None = None
    tried: int = 0

    @property
    def has_time(self) -> bool:
        """Whether there is time for another world."""
        return time.monotonic() + _LEAST_S <= self.end

    def views(self, **of_others: bool) -> list[RankView]:
        """What each rank sees. of_others: how ranks from 1 on differ from rank 0; a fresh interpreter for one."""
        asked = [self._asked(rank=0, entropy=of_others.get("entropy", True))]
        for rank in range(1, self.size):
            changes = {**of_others, "fresh": of_others.get("fresh", False) and rank == 1}
            asked.append(self._asked(rank=rank, **changes))
        return self._run(asked)

    def whole(self) -> RankView | None:
        """What one rank sees that is alone in its world; None where time was short or it failed."""
        if not self.has_time:
            return None
        alone = self._run([self._asked(rank=0, world=1, count=1)])[0]
        return None if alone.error or alone.cut or (alone.iterable and "alone" not in alone.passes) else alone

    def why(self, case: IndexMap) -> IndexMap:
        """The one difference between two processes that alone makes their indices differ."""
        causes: list[tuple[Cause, dict[str, bool]]] = [
            ("listing", {"entropy": False, "listing_reversed": True}),
            ("entropy", {"entropy": True}),
        ]
        for cause, differences in causes:
            if not self.has_time:
                return case
            views = self.views(**differences)
            again = index_map(views)
            if not any(view.error or view.cut for view in views) and (
                again.differing or len(set(again.lengths)) > 1
            ):
                return replace(case, cause=cause)
        return replace(case, cause="interpreter")

    def alike_with_one_seed(self) -> bool:
        """Whether all ranks hold the same samples at the same indices where nothing but the rank differs.

        What makes them differ otherwise is then an accident, and no part that each was given.
        """
        if not self.has_time:
            return False
        views = self.views(entropy=False)
        again = index_map(views)
        failed = any(view.error or view.cut for view in views)
        return not failed and again.compared > 0 and not again.differing and len(set(again.lengths)) == 1

    def apart_with_one_seed(self, whole: RankView | None = None) -> bool:
        """Whether no two ranks read the same sample of a stream where all of them begin from the same seeds."""
        if not self.has_time:
            return False
        views = self.views(entropy=False)
        if any(view.error or view.cut or len(view.passes) < 2 for view in views):
            return False
        for each in views:  # workers are never seeded alike
            each.passes.pop("workers", None)
        again = stream(views, whole)
        return again.ended and not again.unjudged and not again.between_ranks and not again.groups

    def _asked(self, **changes: Any) -> EmulatedRank:
        folder = os.path.join(self.folder, str(self.tried))
        left = max(0.0, self.end - time.monotonic())
        given = {"world": self.size, "seconds": min(_READING_S * _pressure(), left / 12), **changes}
        return EmulatedRank(plan=self.plan, folder=folder, **given)

    def _run(self, asked: Sequence[EmulatedRank]) -> list[RankView]:
        os.makedirs(asked[0].folder)
        self.tried += 1
        left = max(_LEAST_S, self.end - time.monotonic()) + _TO_MEET_S
        ended = child.run_all([_work(asked, self.interpreter) for asked in asked], RankView, left)
        if any(asked.fresh for asked in asked):
            self.interpreter = None
        for world in ended:
            if world.value and world.value.defect:
                raise Defect(world.value.defect)
        return [_seen(rank, end) for rank, end in enumerate(ended)]


def _pressure() -> float:
    """How many processes want each core, 1 to _MOST_PRESSURE: reading takes that much longer."""
    return min(_MOST_PRESSURE, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def _seen(rank: int, end: child.ChildEnd[RankView]) -> RankView:
    """A child that was ended from outside says nothing of the factory: by our limit, or where memory was short."""
    if end.ok and end.value:
        return end.value
    if end.timed_out or end.signal == signal.SIGKILL:
        return RankView(rank=rank, cut=end.how)
    return RankView(rank=rank, error=end.how, place=end.place)


def _work(asked: EmulatedRank, ready: Interpreter | None) -> Callable[[child.Gate], RankView]:
    if asked.fresh:
        return lambda _: (ready or Interpreter.start()).view(asked)
    return lambda _: view(asked)
