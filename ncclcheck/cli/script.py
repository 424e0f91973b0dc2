"""`ncclcheck script`."""

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
from ncclcheck.commands import script as command
from ncclcheck.results import outputs
from ncclcheck.run.plan.config import Site
from ncclcheck.run.plan.options import Options, codes


@click.command("script", cls=SiteCommand, context_settings=HELP)
@click.argument("files", nargs=-1, metavar="TRAIN.py...")
@plain_option(
    "--output",
    "-o",
    group=OUTPUT,
    type=click.Choice(["text", "short", "json"]),
    default="text",
    help="form of stdout",
)
@reports
@option("--only", group=VERDICT, metavar="CODES", default="", help="judge these codes or families only: SCR002")
@option("--ignore", group=VERDICT, metavar="CODES", default="", help="make these codes notes that stay visible")
@option("--strict", group=VERDICT, is_flag=True, help="warnings and unknowns are failures too")
@option("--quiet", "-q", group=OUTPUT, is_flag=True, help="print nothing when all is well")
@option("--verbose", "-v", group=OUTPUT, is_flag=True, help="list every check and its evidence")
@option("--color", group=OUTPUT, type=click.Choice(["auto", "always", "never"]), default="auto", help="colours")
@click.pass_obj
def script(site: Site, /, files: tuple[str, ...], **given: Any) -> int:
    """Read a training script, without running it: what would hang, train wrongly or waste time on many ranks.

    TRAIN.py is read with what it imports from its own folder. Its arguments may follow after --.
    """
    if given["anonymise"]:
        raise UsageError("script: findings quote lines of the script, which --anonymise cannot hide; leave it out")
    options = Options(
        command="script",
        output=given["output"],
        **report_options(given),
        only=codes("--only", given["only"]) or ("SCR",),
        ignore=codes("--ignore", given["ignore"]),
        strict=given["strict"],
        quiet=given["quiet"],
        verbose=given["verbose"],
        color=given["color"],
        policy=policy(site, ""),
    )
    outputs.check(options)
    return command.run(options, files)
