"""`ncclcheck bench`: facts first, then one torchrun job over all nodes, then the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.job.context import JobPlan
from ncclcheck.reports import expect
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.scale import suspicion
from ncclcheck.run.conduct import conduct
from ncclcheck.run.jobs import TorchJob
from ncclcheck.run.own_command import OwnCommand
from ncclcheck.run.plan import bench_plan
from ncclcheck.run.plan.bench_plan import BenchOptions
from ncclcheck.run.plan.options import Options
from ncclcheck.run.stages import Stages

_BEGINS_S = 20.0  # s in which a world forms, or meets for the first time; a third of a longer deadline; chosen
_GROWING_S, _LEAST_S = 120.0, 25.0  # s for pairs and groups after a job that failed, and fewer than it is worth
_STARTING_S = 12.0  # s of these for torchrun and import of torch; chosen


def run(options: Options, bench: BenchOptions) -> int:
    """The whole of `bench`; the exit code. Raises UsageError."""

    def work(stages: Stages) -> tuple[Callable[[], None], Callable[[], Cluster]]:
        this = TorchJob(stages, bench)

        def stages_of_bench() -> None:
            stages.facts()
            stages.reach()
            measure(this, bench)

        return stages_of_bench, this.cluster

    own = OwnCommand(nproc_per_node=bench.nproc_per_node, injected=bool(bench.inject), begin=bench.begin)
    return conduct(options, options.deadline or bench_plan.default_deadline("bench", bench), work, own=own)


def measure(
    job: TorchJob,
    bench: BenchOptions,
    name: str = "bench",
    *,
    share: float = 1.0,
    only: Collection[str] | None = None,
) -> bool:
    """One job that measures, within a share of the time that is left; whether every rank finished.

    only: kinds of measurements that are kept of it; None: all.
    Raises UsageError for what does not fit or cannot be reached, and Interrupted.
    """
    if (shape := job.prepare(name)) is None:
        return False
    parts = bench_plan.job(bench, shape, [*job.members.values()], simulated=job.stages.choice.simulated)
    refuse_demands(job, parts)
    job.announce(bench_plan.stated_seconds(bench))
    left = share * job.stages.deadline.left
    begins_s = max(_BEGINS_S, left / 3) if parts.groups else math.inf
    if job.run(name, parts, left, only, begins_s):
        return True
    if parts.groups:
        _grow(job, bench)
    return False


def _grow(job: TorchJob, bench: BenchOptions) -> None:
    """Where the whole failed and nobody is to blame: its nodes in pairs, then in groups. Raises Interrupted."""
    assert job.shape is not None
    seconds = min(_GROWING_S, job.seconds)
    if seconds < _LEAST_S or not suspicion.whole_has_failed(job.cluster()):
        return
    parts = bench_plan.apart(bench.level, job.shape.backend, seconds - _STARTING_S)
    with job.stages.stage(
        "groups", "the whole job failed: trying its nodes in pairs, then in growing groups"
    ) as stage:
        if why := job.once(parts, seconds, ("groups",)):  # pairs without a world tell no cause of being slow
            stage.state, stage.reason = State.UNKNOWN, why


def refuse_demands(job: TorchJob, parts: JobPlan) -> None:
    """Raises UsageError for a bandwidth that is demanded and not measured, or that nothing here can reach."""
    measured = {row.op: None for row in parts.collectives.rows}
    for op in job.stages.options.policy.min_busbw:
        if op not in measured:
            raise UsageError(f"--min-busbw: {op} is not measured in this run, only {', '.join(measured)}")
    for problem in expect.impossible(job.cluster(), job.ranks, len(job.stages.choice.names)):
        raise UsageError(f"--min-busbw: {problem}")
