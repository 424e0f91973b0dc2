"""`ncclcheck env`: the facts of this node, or of all nodes, and their agreement. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from ncclcheck.probes.facts import Cluster
from ncclcheck.run.conduct import conduct
from ncclcheck.run.plan.bench_plan import default_deadline
from ncclcheck.run.plan.options import Options
from ncclcheck.run.stages import Stages


def run(options: Options) -> int:
    """Read the facts of all nodes and judge them; the exit code. Raises UsageError."""
    return conduct(options, options.deadline or default_deadline("env"), _work)


def _work(stages: Stages) -> tuple[Callable[[], None], Callable[[], Cluster]]:
    def stages_of_env() -> None:
        stages.facts()
        stages.reach()

    return stages_of_env, stages.cluster
