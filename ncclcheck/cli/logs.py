"""`ncclcheck logs`."""

from __future__ import annotations

from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import (
    HELP,
    OUTPUT,
    SECONDS,
    VERDICT,
    SiteCommand,
    option,
    plain_option,
    policy,
    report_options,
    reports,
)
from ncclcheck.commands import logs as reader
from ncclcheck.results import outputs
from ncclcheck.run.plan.config import Site
from ncclcheck.run.plan.options import Options, codes

_EPILOG = """\b
Exit codes:
  0    no failure is logged, and the job ended or made progress
  1    the job failed; its cause, where it was found, heads the report
  2    wrong usage, or a file that does not exist
  3    no failure is logged, but not all could be read or understood, or the log simply stops
"""


@click.command("logs", cls=SiteCommand, epilog=_EPILOG, context_settings=HELP)
@click.argument("files", nargs=-1, metavar="FILE...")
@plain_option(
    "--output",
    "-o",
    group=OUTPUT,
    type=click.Choice(["text", "short", "json"]),
    default="text",
    help="format of stdout",
)
@reports
@option("--only", group=VERDICT, metavar="CODES", default="", help="judge these codes or families only: LOG050")
@option("--ignore", group=VERDICT, metavar="CODES", default="", help="downgrade these codes to notes")
@option("--strict", group=VERDICT, is_flag=True, help="warnings and unknowns are failures too")
@option(
    "--deadline",
    group=VERDICT,
    type=SECONDS,
    metavar="S",
    help="seconds until the report is printed  [default: 600]",
)
@option("--quiet", "-q", group=OUTPUT, is_flag=True, help="print nothing when all is well")
@option("--verbose", "-v", group=OUTPUT, is_flag=True, help="list every check and its evidence")
@option(
    "--color", group=OUTPUT, type=click.Choice(["auto", "always", "never"]), default="auto", help="colour the text"
)
@click.pass_obj
def logs(site: Site, /, files: tuple[str, ...], **given: Any) -> int:
    """Name the cause in logs of NCCL, torch, torchrun and Slurm, and in Flight Recorder dumps.

    FILE is a file, a folder, a glob in quotes or - (standard input); gzip is read too.
    """
    if not files:
        raise UsageError("logs: no file was given; type: ncclcheck logs FILE..., or ncclcheck logs - for stdin")
    options = Options(
        command="logs",
        output=given["output"],
        **report_options(given),
        only=codes("--only", given["only"]) or ("LOG",),
        ignore=codes("--ignore", given["ignore"]),
        strict=given["strict"],
        deadline=given["deadline"],
        quiet=given["quiet"],
        verbose=given["verbose"],
        color=given["color"],
        policy=policy(site, ""),
    )
    outputs.check(options)
    return reader.run(options, files)
