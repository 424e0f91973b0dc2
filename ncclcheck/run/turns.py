"""Pairs of short jobs, without some settings and with them, in turn.

NCCL reads most variables once in the life of a process, so each measurement is a job of its own; their order
changes from pair to pair, so that what drifts meanwhile favours neither.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ncclcheck.probes.facts import Measurements, together
from ncclcheck.probes.job.context import JobPlan
from ncclcheck.run.jobs import TorchJob
from ncclcheck.run.place import MeetingPlace
from ncclcheck.run.plan.bench_plan import BenchOptions
from ncclcheck.run.stages import Stages

Medians = dict[tuple[str, int], float]

_PATIENCE_S, _PATIENCE = 30.0, 5.0  # a job may take so long, or so many times as long as the longest before it
_PAIR = 2.5  # of the longest job so far: two jobs, and a quarter for what is between them; chosen
_ENDING_S = 8.0  # so near to the deadline it was not the setting that ended a job
_LONGEST = 200  # characters of an exception in one line: chosen


class Turns:
    """The pairs of jobs so far. failed: how the job with the settings ended, where it did not end well.

    place: where the jobs of this run meet; kept: whether a job's measurements were kept already.
    """

    def __init__(
        self,
        stages: Stages,
        wanted: BenchOptions,
        settings: Mapping[str, str | None],
        place: MeetingPlace | None = None,
        longest: float = 0.0,
    ) -> None:
        self.stages = stages
        self.without = TorchJob(stages, wanted, place=place)
        self.with_ = TorchJob(stages, wanted, settings=settings, place=self.without.place)
        self.label = " ".join(f"{name}={value or ''}" for name, value in settings.items())
        self.pairs: list[tuple[Medians, Medians]] = []
        self.longest = longest
        self.failed = ""

    def prepare(self, name: str) -> bool:
        """Whether the jobs may start; the stage of that name says why not. Raises UsageError."""
        return self.without.prepare(name) is not None and self.with_.prepare(name) is not None

    def time_for(self, pairs: int) -> bool:
        """Whether the deadline leaves time for so many pairs more."""
        return pairs * _PAIR * self.longest <= self.stages.deadline.left

    def pair(self, parts: JobPlan) -> str:
        """One pair more; why it did not come to its end, or nothing. Raises Interrupted."""
        jobs = [self.without, self.with_]
        medians: dict[TorchJob, Medians] = {}
        for job in jobs if len(self.pairs) % 2 == 0 else reversed(jobs):
            why = self._once(job, parts, medians)
            if why and job is self.with_ and self.stages.deadline.left > _ENDING_S:
                self.failed = self._blamed(why)
            if why:
                ended = "the deadline passed" if why == "deadline" else why
                return f"{'with' if job is self.with_ else 'without'} {self.label}: {ended}"
        self.pairs.append((medians[self.without], medians[self.with_]))
        return ""

    def _once(self, job: TorchJob, parts: JobPlan, medians: dict[TorchJob, Medians]) -> str:
        """Run it and keep its medians; of the first job all is kept, of others only what was wrong."""
        gathered, begun = self.stages.session.gathered.parts, time.monotonic()
        before, first = len(gathered), not self.longest
        most = self.stages.deadline.left / 2 if first else max(_PATIENCE_S, _PATIENCE * self.longest)
        try:
            why = job.once(parts, most)
        finally:
            this = together(gathered[before:])
            if not first:
                gathered[before:] = [Measurements(wrong=this.wrong)]
        self.longest = max(self.longest, time.monotonic() - begun)
        medians[job] = {(row.op, row.bytes): row.time_us.p50 for row in this.collectives if row.time_us}
        return why

    def _blamed(self, why: str) -> str:
        """`why`, with the rank that was lost first and what it raised, where one was."""
        lost = self.stages.session.gathered.lost_ranks
        first = min(lost, key=lambda rank: (not rank.first, not rank.error, rank.rank), default=None)
        if first is None:
            return why
        return f"{why}: rank {first.rank} on {first.node}" + (f", {first.error[:_LONGEST]}" if first.error else "")
