"""What `preflight` runs at each level, within which time. Pure."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import get_args

from ncclcheck.run.plan.bench_plan import BenchOptions, JobOptions, Level
from ncclcheck.run.plan.data_plan import DataOptions
from ncclcheck.run.plan.option_table import (
    OUTPUT,
    VERDICT,
    CommandOption,
    Flag,
    Json,
    NumberRange,
    WordChoice,
    made_of,
    typed,
)
from ncclcheck.run.plan.smoke_plan import MODELS, SmokeOptions, named, reference

DEADLINE_S = 600.0  # s for all stages together where --deadline is not given; chosen
_SMOKE_S: dict[Level, float] = {"quick": 6.0, "standard": 20.0, "full": 60.0}
_STEPS: dict[Level, int] = {"quick": 10, "standard": 20, "full": 50}
_DATA_S: dict[Level, float] = {"quick": 10.0, "standard": 30.0, "full": 60.0}


@dataclass(frozen=True)
class PreflightOptions(JobOptions):
    """The options of `preflight` itself. need: nodes that COMMAND wants, 0: all; command: what to become.

    script: a training script that is read first. workers, factory_limit (s), settings: as it has them, these
    for all jobs.
    """

    level: Level = typed(
        "standard", "--level", "how much is measured", WordChoice(get_args(Level)), show_default=True, site=True
    )
    simulate: bool = typed(False, "--simulate", "simulate two nodes on this machine, as a demonstration", Flag())
    script: str = typed("", "--script", "read this training script first, and do as it does", metavar="TRAIN.py")
    data: str = named("--data", "examine this dataset too", metavar="MODULE:FACTORY")
    data_kwargs: dict[str, object] = typed(
        dict, "--data-kwargs", "keyword arguments for its factory", Json(), metavar="JSON"
    )
    model: str = made_of(
        "transformer",
        lambda given: reference("--model", given, MODELS),
        CommandOption(
            "--model",
            "the model to train, as in smoke; MODULE:FACTORY needs --data",
            metavar="NAME",
            default="transformer",
        ),
    )
    verify: bool = made_of(
        True,
        operator.not_,
        CommandOption(
            "--no-verify",
            "do not test the recommended settings before writing them",
            Flag(),
            default=False,
            site=Flag(),
        ),
    )
    apply: bool = typed(False, "--apply", "start COMMAND with the recommended settings", Flag())
    watch: bool = typed(False, "--watch", "start COMMAND in a black box, as ncclcheck watch does", Flag())
    healthy_file: str = typed(
        "", "--healthy-file", "write the healthy nodes, one per line", group=OUTPUT, metavar="FILE"
    )
    exclude_file: str = typed(
        "", "--exclude-file", "write the others, in the format of sbatch --exclude=", group=OUTPUT, metavar="FILE"
    )
    need: int = made_of(
        0,
        int,
        CommandOption(
            "--need", "N healthy nodes are enough", NumberRange(1, 100_000, whole=True), group=VERDICT, metavar="N"
        ),
    )
    cache_minutes: float = made_of(
        0.0,
        float,
        CommandOption(
            "--cache",
            "reuse a ready result at most MINUTES old",
            NumberRange(1, 10_080, "minutes"),
            group=VERDICT,
            metavar="MINUTES",
            site=NumberRange(1, 10_080, "minutes"),
        ),
    )
    command: tuple[str, ...] = ()
    workers: int | None = None
    factory_limit: float = 300.0
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
