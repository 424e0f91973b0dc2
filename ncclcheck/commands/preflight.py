"""`ncclcheck preflight`: all of it in order, bad nodes left out as they are found; then verdict and gate."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import partial

from ncclcheck.base.errors import UsageError
from ncclcheck.commands import bench, data, smoke
from ncclcheck.commands.steps import gate
from ncclcheck.commands.steps.cache import Cache
from ncclcheck.launch import choose
from ncclcheck.launch.given import must_be_here, working_directory
from ncclcheck.probes.facts import Cluster, Measurements, Verified, replace
from ncclcheck.probes.facts.script import Script
from ncclcheck.probes.script import reading
from ncclcheck.probes.script.sources import NotRead
from ncclcheck.reports.culprit import culprits
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Stage
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.selection import bad_nodes
from ncclcheck.reports.recommend import recommend
from ncclcheck.run.conduct import conduct
from ncclcheck.run.jobs import TorchJob
from ncclcheck.run.own_command import OwnCommand
from ncclcheck.run.place import MeetingPlace
from ncclcheck.run.plan import data_plan, preflight_plan, script_plan, smoke_plan
from ncclcheck.run.plan.bench_plan import BenchOptions, JobOptions
from ncclcheck.run.plan.options import Options
from ncclcheck.run.plan.preflight_plan import PreflightOptions
from ncclcheck.run.stages import Stages

# of the time that is left: chosen, the smoke run and the report take the rest
_BENCH_SHARE, _VERIFY_SHARE = 0.5, 0.4


def run(options: Options, wanted: PreflightOptions) -> int:
    """The whole of `preflight`; the exit code, unless COMMAND takes this process over. Raises UsageError."""
    script, words = None, ""
    if wanted.script and options.from_file is None:
        script, wanted, words = _read(wanted)
    options = dataclasses.replace(options, then=wanted.command)
    if options.from_file is None:
        for option, reference in (("--model", wanted.model), ("--data", wanted.data)):
            must_be_here(option, reference)
        choose.refuse_to_simulate(options, os.environ, simulate=wanted.simulate)
        gate.check(wanted, joins=choose.choose(options, os.environ).who is not None)
    if wanted.simulate and options.nodes is None:
        options = dataclasses.replace(options, nodes=2, launch="local")
    cache = Cache.of(options, wanted)
    if (document := cache.fresh(options)) is not None:
        return gate.passed(wanted, document, cache.deliver(document, options), strict=options.strict)

    def work(stages: Stages) -> tuple[Callable[[], None], Callable[[], Cluster]]:
        this = Preflight(stages, wanted)
        if script is not None:
            this.judge_too(script, words)
        return this.run, this.cluster

    seconds = options.deadline or preflight_plan.DEADLINE_S
    return conduct(options, seconds, work, partial(gate.after, wanted, cache, options.strict), _own(wanted))


def _read(wanted: PreflightOptions) -> tuple[Script, PreflightOptions, str]:
    """The script, what is asked for with what it says, and this in words. Raises UsageError."""
    own, command = script_plan.arguments(wanted.script, wanted.command)
    try:
        script = reading.read([wanted.script], own)
    except NotRead as error:
        raise UsageError(f"preflight: {error}") from None
    wanted, choices = script_plan.filled(dataclasses.replace(wanted, command=command), script)
    return script, wanted, f"from {wanted.script}: {', '.join(choices)}" if choices else ""


def _own(wanted: PreflightOptions) -> OwnCommand:
    return OwnCommand(
        training=smoke_plan.training(preflight_plan.smoke(wanted), directory=working_directory()),
        data=data_plan.named(preflight_plan.data(wanted), directory=working_directory()) if wanted.data else None,
        nproc_per_node=wanted.nproc_per_node,
        injected=bool(wanted.inject),
        begin=wanted.begin,
    )


class Preflight:
    """One run: its stages, and the nodes that are left out so far."""

    def __init__(self, stages: Stages, wanted: PreflightOptions) -> None:
        self.stages, self.wanted = stages, wanted
        self.without: set[int] = set()
        self.settings: dict[str, str | None] = {**wanted.settings}
        self.place = MeetingPlace(stages, wanted.begin)
        self._job = self._next_job()

    def run(self) -> None:
        """All stages. Raises UsageError for a shape that cannot fit, and Interrupted."""
        self.stages.facts()
        self.stages.reach()
        self._leave_out()
        self.place.try_it(self._next_job().members)
        self._leave_out()
        self._bench("bench", preflight_plan.bench(self.wanted), _BENCH_SHARE)
        self._leave_out()
        if self.wanted.data:
            data.examine(self.stages, preflight_plan.data(self.wanted))
        self._verify()
        self._job = self._next_job()
        smoke.train(self._job, preflight_plan.smoke(self.wanted))

    def judge_too(self, script: Script, reason: str) -> None:
        """The script is judged with the rest, for as many nodes as there are."""
        script = replace(script, nodes=len(self.stages.choice.names))
        self.stages.session.gathered.parts.append(Measurements(script=script))
        self.stages.done.append(Stage(name="script", state=State.OK, seconds=0.0, reason=reason or None))
        if reason:
            self.stages.progress.say(reason)

    def cluster(self) -> Cluster:
        """Everything that is known by now."""
        return self._job.cluster()

    def _next_job(self) -> TorchJob:
        return self._job_of(self.wanted)

    def _job_of(self, wanted: JobOptions) -> TorchJob:
        return TorchJob(self.stages, wanted, without=self.without, settings=self.settings, place=self.place)

    def _bench(self, name: str, wanted: BenchOptions, share: float, only: tuple[str, ...] | None = None) -> bool:
        self._job = self._job_of(wanted)
        return bench.measure(self._job, wanted, name, share=share, only=only)

    def _leave_out(self) -> None:
        """Nodes that are bad by what is known now; all are, then none is left out."""
        names = self.stages.choice.names
        silent = {
            silence.node for silence in self.stages.session.gathered.run(started_job=False, stopped_by="").silent
        }
        cluster = self.cluster()
        bad = bad_nodes(judge(cluster), culprits(cluster), [node.name for node in cluster.nodes])
        for name in (*silent, *bad):
            if name in names and names.index(name) not in self.without:
                self.without.add(names.index(name))
                self.stages.progress.say(f"{name} is left out: {bad.get(name, 'it did not answer')}")

    def _verify(self) -> None:
        """Run shortly with what would be recommended; what does not survive is not handed out."""
        cluster = self.cluster()
        recommendations = [
            recommendation
            for recommendation in recommend(cluster, judge(cluster))
            if recommendation.action in ("set", "unset")
        ]
        settings = {
            recommendation.variable: recommendation.value if recommendation.action == "set" else None
            for recommendation in recommendations
        }
        if not settings:
            return
        if not self.wanted.verify:
            self.stages.done.append(Stage(name="verify", state=State.SKIPPED, seconds=0.0, reason="--no-verify"))
            return
        kept, before = self._job, self.settings
        self.settings = before | settings
        survived = self._bench("verify", preflight_plan.verification(self.wanted), _VERIFY_SHARE, only=())
        self._job = kept
        if not survived:
            self.settings = before
        verified = Verified(variables=[*settings], survived=survived)
        self.stages.session.gathered.parts.append(Measurements(verified=verified))
