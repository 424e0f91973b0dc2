"""`ncclcheck bench`: facts first, then one torchrun job over all nodes, then the verdict."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.job.context import JobPlan
from ncclcheck.reports import expect
from ncclcheck.run.conduct import conduct
from ncclcheck.run.jobs import TorchJob
from ncclcheck.run.own_command import OwnCommand
from ncclcheck.run.plan import bench_plan
from ncclcheck.run.plan.bench_plan import BenchOptions
from ncclcheck.run.plan.options import Options
from ncclcheck.run.stages import Stages


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
    return job.run(name, parts, share * job.stages.deadline.left, only)


def refuse_demands(job: TorchJob, parts: JobPlan) -> None:
    """Raises UsageError for a bandwidth that is demanded and not measured, or that nothing here can reach."""
    measured = {row.op: None for row in parts.collectives.rows}
    for op in job.stages.options.policy.min_busbw:
        if op not in measured:
            raise UsageError(f"--min-busbw: {op} is not measured in this run, only {', '.join(measured)}")
    for problem in expect.impossible(job.cluster(), job.ranks, len(job.stages.choice.names)):
        raise UsageError(f"--min-busbw: {problem}")
