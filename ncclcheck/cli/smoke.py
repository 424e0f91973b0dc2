"""`ncclcheck smoke`."""

from __future__ import annotations

from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import (
    HELP,
    SECONDS,
    JsonObject,
    Number,
    SiteCommand,
    common,
    option,
    parse,
)
from ncclcheck.cli.jobs import of_jobs, wishes
from ncclcheck.commands import smoke as command
from ncclcheck.run.plan import faults
from ncclcheck.run.plan import smoke_plan as plan
from ncclcheck.run.plan.config import Site


@click.command("smoke", cls=SiteCommand, context_settings=HELP)
@common
@of_jobs(faults.TRAINING_FORMS)
@option(
    "--model", metavar="NAME", default="transformer", show_default=True, help="transformer, conv or MODULE:FACTORY"
)
@option(
    "--model-kwargs",
    type=JsonObject(),
    metavar="JSON",
    default="{}",
    help="keyword arguments for the model's factory",
)
@option("--data", metavar="MODULE:FACTORY", default="", help="your dataset  [default: synthetic]")
@option(
    "--data-kwargs",
    type=JsonObject(),
    metavar="JSON",
    default="{}",
    help="keyword arguments for the dataset's factory",
)
@option("--loss", metavar="MODULE:FACTORY", default="", help="your loss: output, targets -> scalar")
@option("--step", metavar="MODULE:FUNCTION", default="", help="your own step of the loop: model, batch, state")
@option("--checkpoint-save", metavar="MODULE:FUNCTION", default="", help="your own save: model, state, path")
@option("--checkpoint-load", metavar="MODULE:FUNCTION", default="", help="your own load: model, state, path")
@option("--steps", type=Number(4, 100_000, whole=True), default=20, show_default=True, help="optimizer steps")
@option(
    "--batch",
    type=Number(1, 65_536, whole=True),
    default=8,
    show_default=True,
    help="samples per rank and micro-batch",
)
@option(
    "--accumulate",
    type=Number(1, 1024, whole=True),
    default=1,
    show_default=True,
    help="micro-batches per step, with no_sync",
)
@option("--precision", type=click.Choice(plan.PRECISIONS), default="fp32", show_default=True, help="of autocast")
@option("--strategy", type=click.Choice(plan.STRATEGIES), default="ddp", show_default=True, help="parallelism")
@option("--find-unused-parameters", "find_unused", is_flag=True, help="DDP's flag of the same name")
@option("--checkpoint-dir", "checkpoints", metavar="DIR", default="", help="where checkpoints go  [default: here]")
@option(
    "--save-mib",
    type=Number(1, 2**20, whole=True),
    default=64,
    show_default=True,
    help="size limit of one save",
)
@option("--model-params", metavar="N", default="", help="forecast saving a model of N parameters: 70e9 or 70B")
@option(
    "--timeout",
    "timeout_s",
    type=Number(1, 1e6, "seconds"),
    default=600.0,
    show_default=True,
    help="timeout of your process group in seconds",
)
@option(
    "--settings",
    multiple=True,
    metavar="FILE",
    help="ds_config.json, a script with TrainingArguments: how it saves",
)
@option("--no-kill", is_flag=True, help="skip killing a rank and resuming")
@option("--time-budget", type=SECONDS, default=20.0, show_default=True, metavar="S", help="seconds of measuring")
@click.pass_obj
def smoke(site: Site, /, **given: Any) -> int:
    """A small DDP training run over all nodes: checked, timed, saved, killed and resumed."""
    return command.run(parse("smoke", site, given), _smoke_options(given))


def _smoke_options(given: dict[str, Any]) -> plan.SmokeOptions:
    wanting = [name for name in ("checkpoint_save", "checkpoint_load", "step") if not given[name]]
    if (given["checkpoint_save"] or given["checkpoint_load"]) and wanting:
        raise UsageError(f"--{wanting[0].replace('_', '-')}: own save and load need each other, and --step")
    return plan.SmokeOptions(
        model=plan.reference("--model", given["model"], plan.MODELS),
        model_kwargs=given["model_kwargs"],
        data=plan.reference("--data", given["data"]) if given["data"] else "",
        data_kwargs=given["data_kwargs"],
        loss=plan.reference("--loss", given["loss"]) if given["loss"] else "",
        step=plan.reference("--step", given["step"]) if given["step"] else "",
        save=plan.reference("--checkpoint-save", given["checkpoint_save"]) if given["checkpoint_save"] else "",
        load=plan.reference("--checkpoint-load", given["checkpoint_load"]) if given["checkpoint_load"] else "",
        steps=given["steps"],
        batch=given["batch"],
        accumulate=given["accumulate"],
        precision=given["precision"],
        strategy=given["strategy"],
        find_unused=given["find_unused"],
        time_budget=given["time_budget"],
        checkpoints=given["checkpoints"],
        save_bytes=given["save_mib"] * 2**20,
        model_params=plan.parameters(given["model_params"]) if given["model_params"] else 0.0,
        timeout_s=given["timeout_s"],
        kill=not given["no_kill"],
        settings=tuple(given["settings"]),
        **wishes(given, training=True),
    )
