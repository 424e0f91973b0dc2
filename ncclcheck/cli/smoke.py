"""`ncclcheck smoke`."""

from __future__ import annotations

from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import HELP, SiteCommand, of_job, parse
from ncclcheck.commands import smoke as command
from ncclcheck.run.plan.config import SiteFiles
from ncclcheck.run.plan.option_table import read
from ncclcheck.run.plan.smoke_plan import SmokeOptions


@click.command("smoke", cls=SiteCommand, context_settings=HELP)
@of_job(SmokeOptions)
@click.pass_obj
def smoke(site: SiteFiles, /, **given: Any) -> int:
    """Train a small model over all nodes: checked, timed, resumed.

    With DDP or FSDP; saved, killed and started again.
    """
    wanting = [name for name in ("checkpoint_save", "checkpoint_load", "step") if not given[name]]
    if (given["checkpoint_save"] or given["checkpoint_load"]) and wanting:
        raise UsageError(f"--{wanting[0].replace('_', '-')}: own save and load need each other, and --step")
    return command.run(parse("smoke", site, given), read(SmokeOptions, given))
