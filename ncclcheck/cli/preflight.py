"""`ncclcheck preflight`."""

from __future__ import annotations

from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import (
    HELP,
    OUTPUT,
    VERDICT,
    JsonObject,
    Number,
    SiteCommand,
    common,
    option,
    parse,
)
from ncclcheck.cli.jobs import of_jobs, wishes
from ncclcheck.commands import preflight as command
from ncclcheck.run.plan import faults, smoke_plan
from ncclcheck.run.plan.config import Site
from ncclcheck.run.plan.preflight_plan import PreflightOptions


@click.command("preflight", cls=SiteCommand, context_settings=HELP)
@common
@of_jobs(faults.FORMS)
@option(
    "--level",
    type=click.Choice(["quick", "standard", "full"]),
    default="standard",
    show_default=True,
    help="how much is measured",
)
@option("--simulate", is_flag=True, help="simulate two nodes on this machine, as a demonstration")
@option("--script", metavar="TRAIN.py", default="", help="read this training script first, and do as it does")
@option("--data", metavar="MODULE:FACTORY", default="", help="examine this dataset too")
@option("--data-kwargs", type=JsonObject(), metavar="JSON", default="{}", help="keyword arguments for its factory")
@option(
    "--model",
    metavar="NAME",
    default="transformer",
    help="the model to train, as in smoke; MODULE:FACTORY needs --data",
)
@option("--no-verify", is_flag=True, help="do not test the recommended settings before writing them")
@option("--apply", is_flag=True, help="start COMMAND with the recommended settings")
@option("--watch", is_flag=True, help="start COMMAND in a black box, as ncclcheck watch does")
@option("--healthy-file", group=OUTPUT, metavar="FILE", default="", help="write the healthy nodes, one per line")
@option(
    "--exclude-file",
    group=OUTPUT,
    metavar="FILE",
    default="",
    help="write the others, in the format of sbatch --exclude=",
)
@option(
    "--need", group=VERDICT, type=Number(1, 100_000, whole=True), metavar="N", help="N healthy nodes are enough"
)
@option(
    "--cache",
    group=VERDICT,
    type=Number(1, 10_080, "minutes"),
    metavar="MINUTES",
    help="reuse a ready result at most MINUTES old",
)
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.pass_obj
def preflight(site: Site, /, **given: Any) -> int:
    """All of it in order: facts, reach, bench, data, settings, training; then the verdict, and COMMAND if ready.

    Bad nodes are excluded as they are found and the rest continues, so that one run finds all faults.
    """
    return command.run(parse("preflight", site, given), _options(given))


def _options(given: dict[str, Any]) -> PreflightOptions:
    model = smoke_plan.reference("--model", given["model"], smoke_plan.MODELS)
    if model not in smoke_plan.MODELS and not given["data"]:
        raise UsageError(
            f"--model {model}: a model of your own takes batches of your own; add --data MODULE:FACTORY, or leave "
            f"--model out (or {' or '.join(smoke_plan.MODELS)}) to train on data of ours"
        )
    return PreflightOptions(
        level=given["level"],
        simulate=given["simulate"],
        data=smoke_plan.reference("--data", given["data"]) if given["data"] else "",
        data_kwargs=given["data_kwargs"],
        model=model,
        verify=not given["no_verify"],
        apply=given["apply"],
        watch=given["watch"],
        healthy_file=given["healthy_file"],
        exclude_file=given["exclude_file"],
        need=given["need"] or 0,
        cache_minutes=given["cache"] or 0.0,
        command=given["command_line"],
        script=given["script"],
        **wishes(given),
    )
