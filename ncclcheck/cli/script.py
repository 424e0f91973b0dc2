"""`ncclcheck script`."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import click

from ncclcheck.cli.common import HELP, SiteCommand, of_files, parse, with_options
from ncclcheck.commands import script as command
from ncclcheck.results import outputs
from ncclcheck.run.plan.config import SiteFiles
from ncclcheck.run.plan.option_table import WHERE, CommandOption, NumberRange

_NODES = CommandOption(
    "--nodes",
    "nodes of the job that it is for; else those of the Slurm allocation, or unknown",
    NumberRange(1, 100_000, whole=True),
    group=WHERE,
    metavar="N",
    variable=False,
)


@click.command("script", cls=SiteCommand, context_settings=HELP)
@click.argument("files", nargs=-1, metavar="TRAIN.py...")
@of_files("SCR002", output={"variable": False})
@with_options(_NODES)
@click.pass_obj
def script(site: SiteFiles, /, files: tuple[str, ...], **given: Any) -> int:
    """Read a training script: what would hang or train wrongly.

    It is never run. What wastes time on many ranks is said too.

    TRAIN.py is read with what it imports from its own folder. Its arguments may follow after --.
    """
    nodes = command.nodes(given.pop("nodes"), os.environ)
    options = parse("script", site, given)
    options = replace(options, only=options.only or ("SCR",))
    outputs.check(options)
    return command.run(options, files, nodes)
