"""`ncclcheck report`."""

from __future__ import annotations

from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import HELP, SiteCommand, of_files, parse, with_options
from ncclcheck.commands.steps import box_report
from ncclcheck.fleet import store
from ncclcheck.probes.box.read import reading
from ncclcheck.results import outputs, saved
from ncclcheck.run.plan.config import SiteFiles
from ncclcheck.run.plan.option_table import OUTPUT, CommandOption, Flag, options_of
from ncclcheck.run.plan.options import Options

_COMPARE = CommandOption(
    "--compare", "what is worse, better or changed in the second file", Flag(), variable=False
)
_PARQUET = CommandOption(
    "--parquet",
    "keep the result in this folder, for ncclcheck fleet to ask",
    group=OUTPUT,
    metavar="DIR",
    variable=False,
)
_EPILOG = """\b
Exit codes: those of the command that saved it.
Exit codes of --compare:
  0    nothing is worse
  1    something is worse
  2    wrong usage, or a file that is not a saved result
"""


@click.command("report", cls=SiteCommand, epilog=_EPILOG, context_settings=HELP)
@click.argument("files", nargs=-1, metavar="FILE...")
@with_options(_COMPARE, _PARQUET)
@of_files("NET,NCC003", verbose={"help": "list every check, and all that changed"})
@with_options(*options_of(Options, "policy"))
@click.pass_obj
def report(site: SiteFiles, /, files: tuple[str, ...], *, compare: bool, parquet: str | None, **given: Any) -> int:
    """Judge saved results again, join several, or compare two.

    Those of --save. Measures nothing.
    """
    if len(files) != 2 if compare else not files:
        how = "report --compare BEFORE AFTER" if compare else "report FILE..., or report --compare BEFORE AFTER"
        words = "1 file was" if len(files) == 1 else f"{len(files) or 'no'} files were"
        raise UsageError(f"report: {words} given; type: ncclcheck {how}")
    options = parse("report", site, given)
    if compare:
        if given_files := [*outputs.asked(options), *(["--parquet"] if parquet else [])]:
            raise UsageError(f"{given_files[0]}: not with --compare, which prints only; -o json is its document")
        if any(map(reading.is_box, files)):
            raise UsageError("report --compare: it takes two saved results, not boxes of watch")
        return saved.compare_files(files[0], files[1], options)
    outputs.check(options)
    if parquet is not None:
        store.check(parquet)
    boxes = [path for path in files if reading.is_box(path)]
    if boxes:
        if len(boxes) < len(files):
            raise UsageError("report: folders of boxes and saved results; give the one or the other")
        if parquet is not None:
            raise UsageError("--parquet: not of boxes; it keeps saved results")
        return box_report.run(files, options)
    return saved.judge_files(files, options, parquet)
