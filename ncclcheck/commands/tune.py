"""`ncclcheck tune`: settings that may matter here, in turn with none; what gains, once more as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from ncclcheck.base.errors import UsageError
from ncclcheck.base.progress import complain
from ncclcheck.probes.facts import Candidate, Cluster, Forecast, Measurements, replace
from ncclcheck.probes.job.context import JobPlan
from ncclcheck.probes.logs import sizes
from ncclcheck.probes.logs.files import sources
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.recommend.foreseen import foreseen
from ncclcheck.reports.subjects.job.tuning import TuningSearch
from ncclcheck.reports.text.words.fold import many
from ncclcheck.run.conduct import conduct
from ncclcheck.run.jobs import TorchJob
from ncclcheck.run.own_command import OwnCommand
from ncclcheck.run.plan import tune_plan
from ncclcheck.run.plan.options import Options
from ncclcheck.run.plan.tune_plan import LOOKS, TuneOptions
from ncclcheck.run.stages import Stages
from ncclcheck.run.turns import Turns


def run(options: Options, wanted: TuneOptions) -> int:
    """The whole of `tune`; the exit code. Raises UsageError."""
    used = _used(wanted.files)

    def work(stages: Stages) -> tuple[Callable[[], None], Callable[[], Cluster]]:
        this = _Tune(stages, wanted, used)
        return this.run, this.cluster

    settings = tuple(map(str, wanted.tries))
    own = OwnCommand(nproc_per_node=wanted.nproc_per_node, settings=settings, begin=wanted.begin)
    return conduct(options, options.deadline or tune_plan.default_deadline(wanted), work, own=own)


def _used(files: Sequence[str]) -> sizes.UsedSizes:
    """Raises UsageError where no file tells any size."""
    if not files:
        return sizes.UsedSizes()
    try:
        used = sizes.read(files)
    except sources.NotThere as error:
        raise UsageError(f"--job-files: {error}") from None
    if not (used.calls or used.of_a_part):
        raise UsageError(
            "--job-files: no operation with a size was found; allowed are Flight Recorder dumps, logs with "
            "NCCL_DEBUG_SUBSYS=COLL (and TUNING), and files of NCCL's Inspector"
        )
    return used


class _Tune:
    """The pairs of jobs so far."""

    def __init__(self, stages: Stages, wanted: TuneOptions, used: sizes.UsedSizes) -> None:
        self.stages, self.wanted, self._used = stages, wanted, used
        self._job = TorchJob(stages, wanted)
        self._turns: dict[tuple[Candidate, ...], Turns] = {}
        self._longest = 0.0
        self._stopped = ""

    def cluster(self) -> Cluster:
        """Everything that is known by now."""
        return self._job.cluster()

    def run(self) -> None:
        """All stages. Raises UsageError and Interrupted."""
        self.stages.facts()
        self.stages.reach()
        if self._job.prepare("tune") is None:
            return
        candidates, parts = self._planned()
        about = tune_plan.stated_seconds(self.wanted, len(candidates))
        self.stages.progress.say(
            "to be tried: "
            + ", ".join(f"{candidate.variable}={candidate.value or ''}" for candidate in candidates)
        )
        self._job.announce(about)
        search = TuningSearch(candidates, LOOKS[self.wanted.level])
        try:
            with self.stages.stage(
                "tune", f"{many(len(candidates), 'setting')} in pairs of jobs, without and with each"
            ) as stage:
                stage.state, stage.reason = self._take_turns(search, parts)
        finally:
            whence = "of the job's files" if self._used.calls or self._used.of_a_part else "as given, or usual"
            tuning = replace(
                search.tuning(), sizes_from=whence, stopped=self._stopped, forecasts=self._forecasts(parts)
            )
            self.stages.session.gathered.parts.append(Measurements(tuning=tuning))

    def _planned(self) -> tuple[list[Candidate], JobPlan]:
        shape, nodes = self._job.shape, [*self._job.members.values()]
        assert shape is not None
        simulated = self.stages.choice.simulated
        if self._job.ranks < 2:
            raise UsageError("tune: one rank sends nothing; take --nproc-per-node 2 or --nodes 2")
        candidates = tune_plan.candidates(self.wanted, shape, nodes, simulated=simulated)
        rows = tuple(self._used.heaviest(tune_plan.MOST_ROWS, self._job.ranks))
        wanted = dataclasses.replace(self.wanted, rows=rows)
        return [candidate for candidate in candidates if self._may_run(candidate)], tune_plan.job(
            wanted, shape, nodes, simulated=simulated
        )

    def _may_run(self, candidate: Candidate) -> bool:
        """Whether no rule of settings speaks against it; else it is said and left out."""
        findings = [
            f for f in foreseen(self.cluster(), candidate.variable, candidate.value) if f.state is State.FAIL
        ]
        for finding in findings:
            complain(f"{candidate.variable}={candidate.value or ''} is not tried: {finding.what}")
        return not findings

    def _take_turns(self, search: TuningSearch, parts: JobPlan) -> tuple[State, str | None]:
        """How the stage went, and why not better."""
        pairs = search.pairs()
        settings = next(pairs, None)
        while settings is not None:
            turns = self._turns_of(settings)
            if self._longest and not turns.time_for(1):
                self._stopped = "the deadline left no time for another pair of jobs"
                return State.OK, self._stopped
            why = turns.pair(parts)
            self._longest = max(self._longest, turns.longest)
            if not turns.time_for(LOOKS[self.wanted.level][-1] + 1):  # one more, and then the whole
                search.conclude()
            if why and not turns.failed:
                self._stopped = why
                return State.FAIL, why
            try:
                settings = pairs.send(turns.failed or turns.pairs[-1])
            except StopIteration:
                settings = None
        return State.OK, None

    def _turns_of(self, settings: list[Candidate]) -> Turns:
        key = tuple(settings)
        if key not in self._turns:
            given = {setting.variable: setting.value for setting in settings}
            self._turns[key] = Turns(self.stages, self.wanted, given, self._job.place, self._longest)
            self._turns[key].prepare("tune")
        self._turns[key].longest = self._longest
        return self._turns[key]

    def _forecasts(self, parts: JobPlan) -> list[Forecast]:
        """Those of the sizes that are measured."""
        sizes_ = {row.bytes for row in parts.collectives.rows}
        return [forecast for size, forecast in sorted(self._used.forecasts.items()) if size in sizes_]
