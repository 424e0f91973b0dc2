"""`ncclcheck logs`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import HELP, SiteCommand, of_files, parse, with_options
from ncclcheck.commands import logs as reader
from ncclcheck.results import outputs
from ncclcheck.run.plan.config import SiteFiles
from ncclcheck.run.plan.option_table import options_of
from ncclcheck.run.plan.options import Options

_DEADLINE = "seconds until the report is printed  [default: 600]"
_EPILOG = """\b
Exit codes:
  0    no failure is logged, and the job ended or made progress
  1    the job failed; its cause, where it was found, heads the report
  2    wrong usage, or a file that does not exist
  3    no failure is logged, but not all could be read or understood, or the log simply stops
"""


@click.command("logs", cls=SiteCommand, epilog=_EPILOG, context_settings=HELP)
@click.argument("files", nargs=-1, metavar="FILE...")
@of_files("LOG050", output={"variable": False})
@with_options(*options_of(Options, "deadline", deadline={"help": _DEADLINE}))
@click.pass_obj
def logs(site: SiteFiles, /, files: tuple[str, ...], **given: Any) -> int:
    """Name the cause in the logs of a job that failed.

    Of NCCL, torch, torchrun, Slurm and others, and in Flight Recorder dumps.

    FILE is a file, a folder, a glob in quotes or - (standard input); gzip is read too.
    """
    if not files:
        raise UsageError("logs: no file was given; type: ncclcheck logs FILE..., or ncclcheck logs - for stdin")
    options = parse("logs", site, given)
    options = replace(options, only=options.only or ("LOG",))
    outputs.check(options)
    return reader.run(options, files)
