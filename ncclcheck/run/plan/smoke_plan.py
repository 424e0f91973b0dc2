"""What `smoke` trains, within which time: options -> plan. Pure."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Node, at, replace, value_or
from ncclcheck.probes.job.context import JobPlan, TrainingPlan
from ncclcheck.run.plan import faults
from ncclcheck.run.plan.bench_plan import JobOptions, Shape

MODELS = ("transformer", "conv")
PRECISIONS = ("fp32", "bf16", "fp16")
STRATEGIES = ("ddp", "fsdp", "zero3")
_STARTUP_S = 14.0  # s for torchrun, import of torch and forming the group, in the forecast only; chosen
_RESUME_S = 12.0  # s for the second start after the killed rank, in the forecast only; chosen
_FULLY_SHARD = (2, 4)  # torch.distributed._composable.fsdp
_REFERENCE = re.compile(r"[\w./~-]+:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class SmokeOptions(JobOptions):
    """The options of `smoke` itself. model_params: of the model that a save is forecast for; 0: not asked."""

    model: str = "transformer"
    model_kwargs: dict[str, Any] = field(default_factory=dict)
    data: str = ""
    data_kwargs: dict[str, Any] = field(default_factory=dict)
    loss: str = ""
    step: str = ""
    save: str = ""
    load: str = ""
    steps: int = 20
    batch: int = 8
    accumulate: int = 1
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    strategy: Literal["ddp", "fsdp", "zero3"] = "ddp"
    find_unused: bool = False
    time_budget: float = 20.0
    checkpoints: str = ""
    save_bytes: int = 64 * 2**20
    model_params: float = 0.0
    timeout_s: float = 600.0
    kill: bool = True
    settings: tuple[str, ...] = ()


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
        found = re.match(r"(\d+)\.(\d+)", version)
        if smoke.strategy == "fsdp" and found and (int(found[1]), int(found[2])) < _FULLY_SHARD:
            raise UsageError(
                f"--strategy fsdp: torch {version} on {node.name} has no fully_shard, 2.4 and later do; "
                "allowed are ddp and zero3"
            )


def run_folder(plan: TrainingPlan, run_id: str) -> str:
    """Where the checkpoints of one run go: below the folder that was named, else below the working directory."""
    return os.path.join(plan.directory, plan.checkpoints, f"ncclcheck-smoke-{run_id}")


def job(smoke: SmokeOptions, shape: Shape, nodes: list[Node], *, directory: str, run_id: str) -> JobPlan:
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
