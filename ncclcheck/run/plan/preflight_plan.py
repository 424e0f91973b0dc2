"""What `preflight` runs at each level, within which time. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ncclcheck.run.plan.bench_plan import BenchOptions, JobOptions, Level
from ncclcheck.run.plan.data_plan import DataOptions
from ncclcheck.run.plan.smoke_plan import MODELS, SmokeOptions

DEADLINE_S = 600.0  # s for all stages together where --deadline is not given; chosen
_SMOKE_S: dict[Level, float] = {"quick": 6.0, "standard": 20.0, "full": 60.0}
_STEPS: dict[Level, int] = {"quick": 10, "standard": 20, "full": 50}
_DATA_S: dict[Level, float] = {"quick": 10.0, "standard": 30.0, "full": 60.0}


@dataclass(frozen=True)
class PreflightOptions(JobOptions):
    """The options of `preflight` itself. need: nodes that COMMAND wants, 0: all; command: what to become.

    script: a training script that is read first. workers, factory_limit (s), settings: as it has them, these
    for all jobs. watch: COMMAND runs in a black box.
    """

    level: Level = "standard"
    simulate: bool = False
    data: str = ""
    data_kwargs: dict[str, object] = field(default_factory=dict)
    model: str = "transformer"
    verify: bool = True
    apply: bool = False
    healthy_file: str = ""
    exclude_file: str = ""
    need: int = 0
    cache_minutes: float = 0.0
    command: tuple[str, ...] = ()
    script: str = ""
    workers: int | None = None
    factory_limit: float = 300.0
    watch: bool = False
    settings: dict[str, str] = field(default_factory=dict)


def bench(preflight: PreflightOptions) -> BenchOptions:
    """The collectives and pairs."""
    return BenchOptions(
        level=preflight.level,
        nproc_per_node=preflight.nproc_per_node,
        backend=preflight.backend,
        begin=preflight.begin,
        inject=preflight.inject,
    )


def verification(preflight: PreflightOptions) -> BenchOptions:
    """A short run with the recommended settings."""
    return replace(bench(preflight), level="quick", time_budget=1.0, inject=(), ops=("all_reduce", "all_gather"))


def smoke(preflight: PreflightOptions) -> SmokeOptions:
    """The training. A model of the user's own takes the batches of the dataset that goes with it."""
    own = preflight.model not in MODELS
    return SmokeOptions(
        model=preflight.model,
        data=preflight.data if own else "",
        data_kwargs=dict(preflight.data_kwargs) if own else {},
        steps=_STEPS[preflight.level],
        time_budget=_SMOKE_S[preflight.level],
        kill=preflight.level != "quick",
        nproc_per_node=preflight.nproc_per_node,
        backend=preflight.backend,
        begin=preflight.begin,
    )


def data(preflight: PreflightOptions) -> DataOptions:
    """The dataset, where one is named."""
    return DataOptions(
        factory=preflight.data,
        kwargs=dict(preflight.data_kwargs),
        time_budget=_DATA_S[preflight.level],
        factory_limit=preflight.factory_limit,
        workers=preflight.workers,
        nproc_per_node=preflight.nproc_per_node,
    )
