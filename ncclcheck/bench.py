"""`ncclcheck bench`: facts first, then one torchrun job over all nodes, then the verdict."""

from __future__ import annotations

from collections.abc import Callable

from ncclcheck import plan
from ncclcheck.conduct import conduct
from ncclcheck.errors import UsageError
from ncclcheck.jobs import TorchJob
from ncclcheck.options import Options
from ncclcheck.plan import BenchOptions
from ncclcheck.probes.context import JobPlan
from ncclcheck.probes.facts import Cluster
from ncclcheck.reports import expect
from ncclcheck.stages import Stages


def run(options: Options, bench: BenchOptions) -> int:
    """The whole of `bench`; the exit code. Raises UsageError."""

    def work(stages: Stages) -> tuple[Callable[[], None], Callable[[], Cluster]]:
        this = TorchJob(stages, bench)

        def stages_of_bench() -> None:
            stages.facts()
            stages.reach()
            if (shape := this.prepare("bench")) is not None:
                parts = plan.job(bench, shape, [*this.members.values()], simulated=stages.choice.simulated)
                _refuse_demands(this, parts)
                this.announce(plan.stated_seconds(bench))
                this.run("bench", parts)

        return stages_of_bench, this.cluster

    return conduct(options, options.deadline or plan.default_deadline("bench", bench), work)


def _refuse_demands(job: TorchJob, parts: JobPlan) -> None:
    """Raises UsageError for a bandwidth that is demanded and not measured, or that nothing here can reach."""
    measured = {row.op: None for row in parts.collectives.rows}
    for op in job.stages.options.policy.min_busbw:
        if op not in measured:
            raise UsageError(f"--min-busbw: {op} is not measured in this run, only {', '.join(measured)}")
    for problem in expect.impossible(job.cluster(), job.ranks, len(job.stages.choice.names)):
        raise UsageError(f"--min-busbw: {problem}")
