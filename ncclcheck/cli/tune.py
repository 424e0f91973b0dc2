"""`ncclcheck tune`."""

from __future__ import annotations

from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import HELP, SiteCommand, of_job, parse
from ncclcheck.commands import tune as command
from ncclcheck.run.plan.config import SiteFiles
from ncclcheck.run.plan.option_table import read
from ncclcheck.run.plan.tune_plan import TuneOptions


@click.command("tune", cls=SiteCommand, context_settings=HELP)
@of_job(TuneOptions)
@click.pass_obj
def tune(site: SiteFiles, /, **given: Any) -> int:
    """Find the settings that gain here, by measuring.

    Candidates run in turns with none, and the intervals hold for all comparisons together.
    """
    wanted = read(TuneOptions, given)
    if wanted.files and (wanted.ops or wanted.sizes):
        raise UsageError("--job-files: they say the operations and sizes; give no --ops and --sizes beside them")
    return command.run(parse("tune", site, given), wanted)
