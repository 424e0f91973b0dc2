"""`ncclcheck script`."""

from __future__ import annotations

import os
from typing import Any

import click

from ncclcheck.cli.common import HELP, WHERE, Number, SiteCommand, file_options, of_files, plain_option
from ncclcheck.commands import script as command
from ncclcheck.results import outputs
from ncclcheck.run.plan.config import Site


@click.command("script", cls=SiteCommand, context_settings=HELP)
@click.argument("files", nargs=-1, metavar="TRAIN.py...")
@of_files("SCR002", output_variable=False)
@plain_option(
    "--nodes",
    group=WHERE,
    type=Number(1, 100_000, whole=True),
    metavar="N",
    help="nodes of the job that it is for; else those of the Slurm allocation, or unknown",
)
@click.pass_obj
def script(site: Site, /, files: tuple[str, ...], **given: Any) -> int:
    """Read a training script, without running it: what would hang, train wrongly or waste time on many ranks.

    TRAIN.py is read with what it imports from its own folder. Its arguments may follow after --.
    """
    options = file_options("script", site, given, ("SCR",))
    outputs.check(options)
    return command.run(options, files, command.nodes(given["nodes"], os.environ))
