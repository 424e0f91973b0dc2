"""`ncclcheck bench --with VAR=VALUE`: short jobs in turn, without the setting and with it, then the verdict."""

from __future__ import annotations

from collections.abc import Callable

from ncclcheck.base.errors import UsageError
from ncclcheck.base.progress import complain
from ncclcheck.commands import bench
from ncclcheck.probes.facts import Cluster, Measurements, Trial, TrialRow
from ncclcheck.probes.job.context import JobPlan
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.recommend.foreseen import foreseen
from ncclcheck.run.conduct import conduct
from ncclcheck.run.own_command import OwnCommand
from ncclcheck.run.plan import trial_plan
from ncclcheck.run.plan.bench_plan import BenchOptions
from ncclcheck.run.plan.options import Options
from ncclcheck.run.plan.trial_plan import PAIRS, TriedSetting
from ncclcheck.run.stages import Stages
from ncclcheck.run.turns import Turns


def run(options: Options, wanted: BenchOptions, setting: TriedSetting) -> int:
    """The whole of `bench --with`; the exit code. Raises UsageError."""
    if doubt := trial_plan.doubt(setting):
        complain(doubt)

    def work(stages: Stages) -> tuple[Callable[[], None], Callable[[], Cluster]]:
        this = _TrialStep(stages, wanted, setting)
        return this.run, this.cluster

    own = OwnCommand(
        nproc_per_node=wanted.nproc_per_node,
        injected=bool(wanted.inject),
        settings=(str(setting),),
        begin=wanted.begin,
    )
    return conduct(options, options.deadline or trial_plan.default_deadline(wanted), work, own=own)


class _TrialStep:
    """The pairs of jobs so far."""

    def __init__(self, stages: Stages, wanted: BenchOptions, setting: TriedSetting) -> None:
        self.stages, self.wanted, self.setting = stages, wanted, setting
        self._turns = Turns(stages, wanted, {setting.variable: setting.value})

    def cluster(self) -> Cluster:
        """Everything that is known by now."""
        return self._turns.without.cluster()

    def run(self) -> None:
        """All stages. Raises UsageError and Interrupted."""
        self.stages.facts()
        self.stages.reach()
        if not self._turns.prepare("trial"):
            return
        parts = self._planned()
        pairs = PAIRS[self.wanted.level]
        self._turns.without.announce(trial_plan.stated_seconds(self.wanted))
        try:
            with self.stages.stage("trial", f"{pairs} pairs of jobs, without and with {self.setting}") as outcome:
                outcome.state, outcome.reason = self._take_turns(parts, pairs)
        finally:
            if self._turns.pairs or self._turns.failed:
                self.stages.session.gathered.parts.append(Measurements(trial=self._told()))

    def _planned(self) -> JobPlan:
        shape, nodes = self._turns.without.shape, [*self._turns.without.members.values()]
        assert shape is not None
        simulated = self.stages.choice.simulated
        trial_plan.refuse(self.setting, shape, nodes, simulated=simulated)
        for finding in foreseen(self.cluster(), self.setting.variable, self.setting.value):
            if finding.state is State.FAIL:
                raise UsageError(f"--with {self.setting}: {finding.where}: {finding.what}")
            complain(f"--with {self.setting}: {finding.where}: {finding.what}")
        parts = trial_plan.job(self.wanted, shape, nodes, simulated=simulated)
        bench.refuse_demands(self._turns.without, parts)
        return parts

    def _take_turns(self, parts: JobPlan, pairs: int) -> tuple[State, str | None]:
        """How the stage went, and why not better."""
        for number in range(pairs):
            if number and not self._turns.time_for(1):
                return State.OK, f"the deadline left time for {number} of {pairs} pairs"
            if why := self._turns.pair(parts):
                return State.FAIL, why
        return State.OK, None

    def _told(self) -> Trial:
        pairs = self._turns.pairs
        keys = dict.fromkeys(key for without, _ in pairs for key in without)
        rows = []
        for key in keys:
            both = [(a[key], b[key]) for a, b in pairs if key in a and key in b]
            times = [*map(list, zip(*both, strict=True))] or [[], []]
            rows.append(TrialRow(op=key[0], bytes=key[1], without_us=times[0], with_us=times[1]))
        return Trial(
            variable=self.setting.variable,
            value=self.setting.value,
            pairs=len(pairs),
            rows=rows,
            failed=self._turns.failed,
        )
