"""`ncclcheck preflight`."""

from __future__ import annotations

from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import HELP, SiteCommand, of_job, parse
from ncclcheck.commands import preflight as command
from ncclcheck.run.plan.config import SiteFiles
from ncclcheck.run.plan.option_table import read
from ncclcheck.run.plan.preflight_plan import PreflightOptions
from ncclcheck.run.plan.smoke_plan import MODELS


@click.command("preflight", cls=SiteCommand, context_settings=HELP)
@of_job(PreflightOptions)
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.pass_obj
def preflight(site: SiteFiles, /, **given: Any) -> int:
    """Run all checks in order, then COMMAND if the nodes are ready.

    Facts, reach, bench, data, settings and training.

    Bad nodes are excluded as they are found and the rest continues, so that one run finds all faults.
    """
    options, wanted = parse("preflight", site, given), read(PreflightOptions, given, command=given["command_line"])
    if wanted.model not in MODELS and not wanted.data:
        raise UsageError(
            f"--model {wanted.model}: a model of your own takes batches of your own; add --data MODULE:FACTORY, "
            f"or leave --model out (or {' or '.join(MODELS)}) to train on data of ours"
        )
    return command.run(options, wanted)
