"""What `smoke` trains, within which time: options -> plan. Pure."""

from __future__ import annotations

import operator
import os
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Node, at, replace, value_or
from ncclcheck.probes.job.context import JobPlan, TrainingPlan
from ncclcheck.run.plan import faults
from ncclcheck.run.plan.bench_plan import JobOptions, JobShape, injected
from ncclcheck.run.plan.option_table import (
    SECONDS,
    CommandOption,
    Flag,
    Json,
    NumberRange,
    Text,
    WordChoice,
    made_of,
    typed,
)

MODELS = ("transformer", "conv")
Precision = Literal["fp32", "bf16", "fp16"]
Strategy = Literal["ddp", "fsdp", "zero3"]
_STARTUP_S = 14.0  # s for torchrun, import of torch and forming the group, in the forecast only; chosen
_RESUME_S = 12.0  # s for the second start after the killed rank, in the forecast only; chosen
_FULLY_SHARD = (2, 4)  # torch.distributed._composable.fsdp
_REFERENCE = re.compile(r"[\w./~-]+:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def reference(option: str, given: str, builtin: tuple[str, ...] = ()) -> str:
    """A built-in name, or MODULE:FACTORY or path/to/file.py:FACTORY. Raises UsageError."""
    if given in builtin or _REFERENCE.fullmatch(given):
        return given
    also = f"{', '.join(builtin)}, " if builtin else ""
    raise UsageError(
        f"{option}: {given!r} is not understood; allowed are {also}MODULE:FACTORY and FILE.py:FACTORY"
    )


def parameters(given: str) -> float:
    """`70e9`, `70B` or `7.5b` -> elements. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,13}(?:\.\d{1,6})?)(?:e(\d{1,2})|([KMBT]))?", given.strip(), re.IGNORECASE)
    value = 0.0
    if match is not None:
        value = float(match[1]) * 10.0 ** int(
            match[2] or {"": 0, "K": 3, "M": 6, "B": 9, "T": 12}[(match[3] or "").upper()]
        )
    if not 1 <= value <= 1e14:
        raise UsageError(f"--model-params: {given!r} is not understood; allowed are 1 to 1e14 as 70e9 or 70B")
    return value


def named(option: str, help: str, *, metavar: str = "MODULE:FUNCTION") -> Any:
    """A field that names something of the user's own; empty: none."""
    shown = CommandOption(option, help, metavar=metavar, default="")
    return made_of("", lambda given: reference(option, given) if given else "", shown)


@dataclass(frozen=True)
class SmokeOptions(JobOptions):
    """The options of `smoke` itself. model_params: of the model that a save is forecast for; 0: not asked."""

    inject: tuple[str, ...] = injected(faults.TRAINING_FORMS, training=True)
    model: str = made_of(
        "transformer",
        lambda given: reference("--model", given, MODELS),
        CommandOption(
            "--model",
            "transformer, conv or MODULE:FACTORY",
            metavar="NAME",
            default="transformer",
            show_default=True,
        ),
    )
    model_kwargs: dict[str, Any] = typed(
        dict, "--model-kwargs", "keyword arguments for the model's factory", Json(), metavar="JSON"
    )
    data: str = named("--data", "your dataset  [default: synthetic]", metavar="MODULE:FACTORY")
    data_kwargs: dict[str, Any] = typed(
        dict, "--data-kwargs", "keyword arguments for the dataset's factory", Json(), metavar="JSON"
    )
    loss: str = named("--loss", "your loss: output, targets -> scalar", metavar="MODULE:FACTORY")
    step: str = named("--step", "your own step of the loop: model, batch, state")
    save: str = named("--checkpoint-save", "your own save: model, state, path")
    load: str = named("--checkpoint-load", "your own load: model, state, path")
    steps: int = typed(
        20, "--steps", "optimizer steps", NumberRange(4, 100_000, whole=True), show_default=True, site=True
    )
    batch: int = typed(
        8,
        "--batch",
        "samples per rank and micro-batch",
        NumberRange(1, 65_536, whole=True),
        show_default=True,
        site=True,
    )
    accumulate: int = typed(
        1,
        "--accumulate",
        "micro-batches per step, with no_sync",
        NumberRange(1, 1024, whole=True),
        show_default=True,
        site=True,
    )
    precision: Precision = typed(
        "fp32", "--precision", "of autocast", WordChoice(get_args(Precision)), show_default=True, site=True
    )
    strategy: Strategy = typed(
        "ddp", "--strategy", "parallelism", WordChoice(get_args(Strategy)), show_default=True, site=True
    )
    find_unused: bool = typed(False, "--find-unused-parameters", "DDP's flag of the same name", Flag())
    checkpoints: str = typed("", "--checkpoint-dir", "where checkpoints go  [default: here]", metavar="DIR")
    save_bytes: int = made_of(
        64 * 2**20,
        lambda mib: mib * 2**20,
        CommandOption(
            "--save-mib",
            "size limit of one save",
            NumberRange(1, 2**20, whole=True),
            default=64,
            show_default=True,
            site=NumberRange(1, 2**20, whole=True),
        ),
    )
    model_params: float = made_of(
        0.0,
        lambda given: parameters(given) if given else 0.0,
        CommandOption(
            "--model-params",
            "forecast saving a model of N parameters: 70e9 or 70B",
            metavar="N",
            default="",
            site=Text(),
        ),
    )
    timeout_s: float = typed(
        600.0,
        "--timeout",
        "timeout of your process group in seconds",
        NumberRange(1, 1e6, "seconds"),
        show_default=True,
    )
    settings: tuple[str, ...] = typed(
        (),
        "--settings",
        "ds_config.json, a script with TrainingArguments: how it saves",
        metavar="FILE",
        multiple=True,
    )
    kill: bool = made_of(
        True,
        operator.not_,
        CommandOption("--no-kill", "skip killing a rank and resuming", Flag(), default=False, site=Flag()),
    )
    time_budget: float = typed(
        20.0, "--time-budget", "seconds of measuring", SECONDS, metavar="S", show_default=True, site=True
    )


def training(smoke: SmokeOptions, *, directory: str) -> TrainingPlan:
    """What is trained, as far as the command line alone says it: without the folder of the run."""
    return TrainingPlan(
        model=smoke.model,
        model_kwargs=smoke.model_kwargs,
        data=smoke.data,
        data_kwargs=smoke.data_kwargs,
        loss=smoke.loss,
        step=smoke.step,
        save=smoke.save,
        load=smoke.load,
        directory=directory,
        checkpoints=smoke.checkpoints,
        steps=smoke.steps,
        batch=smoke.batch,
        accumulate=smoke.accumulate,
        precision=smoke.precision,
        strategy=smoke.strategy,
        find_unused=smoke.find_unused,
        budget_s=smoke.time_budget,
        save_bytes=smoke.save_bytes,
        parameters=smoke.model_params,
        timeout_s=smoke.timeout_s,
        kill=smoke.kill,
        spawned=smoke.begin.start == "spawn",
    )


def refuse_strategy(smoke: SmokeOptions, nodes: list[Node]) -> None:
    """Raises UsageError where a node's torch lacks what the strategy needs."""
    for node in nodes:
        version = value_or(at(node, "stack.torch"), "")
        match = re.match(r"(\d+)\.(\d+)", version)
        if smoke.strategy == "fsdp" and match and (int(match[1]), int(match[2])) < _FULLY_SHARD:
            raise UsageError(
                f"--strategy fsdp: torch {version} on {node.name} has no fully_shard, 2.4 and later do; "
                "allowed are ddp and zero3"
            )


def run_folder(plan: TrainingPlan, run_id: str) -> str:
    """Where the checkpoints of one run go: below the folder that was named, else below the working directory."""
    return os.path.join(plan.directory, plan.checkpoints, f"ncclcheck-smoke-{run_id}")


def job(smoke: SmokeOptions, shape: JobShape, nodes: list[Node], *, directory: str, run_id: str) -> JobPlan:
    """The job that trains. Raises UsageError."""
    plan = training(smoke, directory=directory)
    names = [node.name for node in nodes]
    return JobPlan(
        training=replace(plan, run_folder=run_folder(plan, run_id)),
        injected=faults.injections(smoke.inject, names, shape.ranks_per_node * len(nodes), []),
    )


def stated_seconds(smoke: SmokeOptions) -> float:
    """How long `smoke` says beforehand that it will take."""
    return _STARTUP_S + smoke.time_budget + (_RESUME_S if smoke.kill else 0.0)


def default_deadline(smoke: SmokeOptions) -> float:
    """Seconds from the program's start until the report, by design §4."""
    return max(120.0, 3 * stated_seconds(smoke))
