"""`ncclcheck bench --with VAR=VALUE`: short jobs in turn, without the setting and with it, then the verdict.

NCCL reads most variables once in the life of a process, so each measurement is a job of its own; their order
changes from pair to pair, so that what drifts meanwhile favours neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ncclcheck.base.errors import UsageError
from ncclcheck.base.progress import complain
from ncclcheck.commands import bench
from ncclcheck.probes.facts import Cluster, Measurements, Trial, TrialRow, together
from ncclcheck.probes.job.context import JobPlan
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.foreseen import foreseen
from ncclcheck.run.conduct import conduct
from ncclcheck.run.jobs import TorchJob
from ncclcheck.run.own_command import OwnCommand
from ncclcheck.run.plan import trial_plan
from ncclcheck.run.plan.bench_plan import BenchOptions
from ncclcheck.run.plan.options import Options
from ncclcheck.run.plan.trial_plan import PAIRS, Setting
from ncclcheck.run.stages import Stages

_PATIENCE_S, _PATIENCE = 30.0, 5.0  # a job may take so long, or so many times as long as the longest before it
_ENDING_S = 8.0  # so near to the deadline it was not the setting that ended a job
_LONGEST = 200
_Medians = dict[tuple[str, int], float]


def run(options: Options, wanted: BenchOptions, setting: Setting) -> int:
    """The whole of `bench --with`; the exit code. Raises UsageError."""
    if doubt := trial_plan.doubt(setting):
        complain(doubt)

    def work(stages: Stages) -> tuple[Callable[[], None], Callable[[], Cluster]]:
        this = _Trial(stages, wanted, setting)
        return this.run, this.cluster

    own = OwnCommand(
        nproc_per_node=wanted.nproc_per_node,
        injected=bool(wanted.inject),
        settings=(str(setting),),
        begin=wanted.begin,
    )
    return conduct(options, options.deadline or trial_plan.default_deadline(wanted), work, own=own)


class _Trial:
    """The pairs of jobs so far. failed: how the job with the setting ended, where it did not end well."""

    def __init__(self, stages: Stages, wanted: BenchOptions, setting: Setting) -> None:
        self.stages, self.wanted, self.setting = stages, wanted, setting
        self._without = TorchJob(stages, wanted)
        self._with = TorchJob(
            stages, wanted, settings={setting.variable: setting.value}, place=self._without.place
        )
        self._pairs: list[tuple[_Medians, _Medians]] = []
        self._longest = 0.0
        self._failed = ""

    def cluster(self) -> Cluster:
        """Everything that is known by now."""
        return self._without.cluster()

    def run(self) -> None:
        """All stages. Raises UsageError and Interrupted."""
        self.stages.facts()
        self.stages.reach()
        if self._without.prepare("trial") is None or self._with.prepare("trial") is None:
            return
        parts = self._planned()
        pairs = PAIRS[self.wanted.level]
        self._without.announce(trial_plan.stated_seconds(self.wanted))
        try:
            with self.stages.stage("trial", f"{pairs} pairs of jobs, without and with {self.setting}") as outcome:
                outcome.state, outcome.reason = self._take_turns(parts, pairs)
        finally:
            if self._pairs or self._failed:
                self.stages.session.gathered.parts.append(Measurements(trial=self._told()))

    def _planned(self) -> JobPlan:
        shape, nodes = self._without.shape, [*self._without.members.values()]
        assert shape is not None
        simulated = self.stages.choice.simulated
        trial_plan.refuse(self.setting, shape, nodes, simulated=simulated)
        for one in foreseen(self.cluster(), self.setting.variable, self.setting.value):
            if one.state is State.FAIL:
                raise UsageError(f"--with {self.setting}: {one.where}: {one.what}")
            complain(f"--with {self.setting}: {one.where}: {one.what}")
        parts = trial_plan.job(self.wanted, shape, nodes, simulated=simulated)
        bench.refuse_demands(self._without, parts)
        return parts

    def _take_turns(self, parts: JobPlan, pairs: int) -> tuple[State, str | None]:
        """How the stage went, and why not better."""
        for number in range(pairs):
            if number and 2.5 * self._longest > self.stages.deadline.left:
                return State.OK, f"the deadline left time for {number} of {pairs} pairs"
            jobs = [self._without, self._with]
            medians: dict[TorchJob, _Medians] = {}
            for job in jobs if number % 2 == 0 else reversed(jobs):
                why = self._once(job, parts, medians)
                if why and job is self._with and self.stages.deadline.left > _ENDING_S:
                    self._failed = self._blamed(why)
                if why:
                    return State.FAIL, f"{'with' if job is self._with else 'without'} {self.setting}: {why}"
            self._pairs.append((medians[self._without], medians[self._with]))
        return State.OK, None

    def _once(self, job: TorchJob, parts: JobPlan, medians: dict[TorchJob, _Medians]) -> str:
        """Run it and keep its medians; of the first job all is kept, of others only what was wrong."""
        told, begun = self.stages.session.gathered.parts, time.monotonic()
        before, first = len(told), not self._longest
        most = self.stages.deadline.left / 2 if first else max(_PATIENCE_S, _PATIENCE * self._longest)
        try:
            why = job.once(parts, most)
        finally:
            this = together(told[before:])
            if not first:
                told[before:] = [Measurements(wrong=this.wrong)]
        self._longest = max(self._longest, time.monotonic() - begun)
        medians[job] = {(row.op, row.bytes): row.time_us.p50 for row in this.collectives if row.time_us}
        return why

    def _blamed(self, why: str) -> str:
        """With the rank that was lost first, and what it raised."""
        lost = self.stages.session.gathered.lost_ranks
        first = min(lost, key=lambda rank: (not rank.first, not rank.error, rank.rank), default=None)
        if first is None:
            return why
        return f"{why}: rank {first.rank} on {first.node}" + (f", {first.error[:_LONGEST]}" if first.error else "")

    def _told(self) -> Trial:
        keys = dict.fromkeys(key for without, _ in self._pairs for key in without)
        rows = []
        for key in keys:
            both = [(a[key], b[key]) for a, b in self._pairs if key in a and key in b]
            times = [*map(list, zip(*both, strict=True))] or [[], []]
            rows.append(TrialRow(op=key[0], bytes=key[1], without_us=times[0], with_us=times[1]))
        return Trial(
            variable=self.setting.variable,
            value=self.setting.value,
            pairs=len(self._pairs),
            rows=rows,
            failed=self._failed,
        )
