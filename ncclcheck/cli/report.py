"""`ncclcheck report`."""

from __future__ import annotations

from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import (
    HELP,
    OUTPUT,
    VERDICT,
    SiteCommand,
    option,
    plain_option,
    policy,
    report_options,
    reports,
)
from ncclcheck.results import outputs, saved
from ncclcheck.run.plan.config import Site
from ncclcheck.run.plan.options import Options, codes

_EPILOG = """\b
Exit codes: those of the command that saved it.
Exit codes of --compare:
  0    nothing is worse
  1    something is worse
  2    wrong usage, or a file that is not a saved result
"""


@click.command("report", cls=SiteCommand, epilog=_EPILOG, context_settings=HELP)
@click.argument("files", nargs=-1, metavar="FILE...")
@plain_option("--compare", is_flag=True, help="what is worse, better or changed in the second file")
@option(
    "--output",
    "-o",
    group=OUTPUT,
    type=click.Choice(["text", "short", "json"]),
    default="text",
    help="format of stdout",
)
@reports
@option(
    "--only", group=VERDICT, metavar="CODES", default="", help="judge these codes or families only: NET,NCC003"
)
@option("--ignore", group=VERDICT, metavar="CODES", default="", help="downgrade these codes to notes")
@option(
    "--require",
    group=VERDICT,
    metavar="SPEC",
    default="",
    help="gpu=8,hca=8,CODE: absent and unknown are failures",
)
@option("--strict", group=VERDICT, is_flag=True, help="warnings and unknowns are failures too")
@option("--quiet", "-q", group=OUTPUT, is_flag=True, help="print nothing when all is well")
@option("--verbose", "-v", group=OUTPUT, is_flag=True, help="list every check, and all that changed")
@option(
    "--color", group=OUTPUT, type=click.Choice(["auto", "always", "never"]), default="auto", help="colour the text"
)
@click.pass_obj
def report(site: Site, /, files: tuple[str, ...], *, compare: bool, **given: Any) -> int:
    """Judge saved results (--save) again, several as one cluster, or compare two. Measures nothing."""
    if len(files) != 2 if compare else not files:
        how = "report --compare BEFORE AFTER" if compare else "report FILE..., or report --compare BEFORE AFTER"
        told = "1 file was" if len(files) == 1 else f"{len(files) or 'no'} files were"
        raise UsageError(f"report: {told} given; type: ncclcheck {how}")
    options = _options(site, given)
    if compare:
        if given_files := outputs.asked(options):
            raise UsageError(f"{given_files[0]}: not with --compare, which prints only; -o json is its document")
        return saved.compare_files(files[0], files[1], options)
    outputs.check(options)
    return saved.judge_files(files, options)


def _options(site: Site, given: dict[str, Any]) -> Options:
    return Options(
        command="report",
        output=given["output"],
        **report_options(given),
        only=codes("--only", given["only"]),
        ignore=codes("--ignore", given["ignore"]),
        strict=given["strict"],
        quiet=given["quiet"],
        verbose=given["verbose"],
        color=given["color"],
        policy=policy(site, given["require"]),
    )
