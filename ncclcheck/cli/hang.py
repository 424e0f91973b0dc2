"""`ncclcheck hang`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import HELP, MEASURE, Number, SiteCommand, common, option, parse, plain_option
from ncclcheck.commands import hang as command
from ncclcheck.run.plan.config import Site

_EPILOG = """\b
Exit codes:
  0    the jobs that were seen advance, or nobody can be named
  1    a rank holds a job up, or all wait for each other; the report names it
  2    wrong usage
  3    no process of a job could be seen
"""
# Of the common options those that say where, and that mean nothing here.
_NOT_HERE = ("nodes", "launch", "node_rank", "rdzv_endpoint", "secret_file", "wait", "sysroot", "host_root")


@click.command("hang", cls=SiteCommand, epilog=_EPILOG, context_settings=HELP)
@option(
    "--seconds",
    group=MEASURE,
    type=Number(2, 600, "seconds"),
    metavar="S",
    default=command.SECONDS,
    show_default=True,
    help="time between the two looks",
)
@plain_option(
    "--passive", group=MEASURE, is_flag=True, help="do not ask py-spy, where it is installed, for stacks"
)
@common
@click.pass_obj
def hang(site: Site, /, seconds: float, passive: bool, **given: Any) -> int:
    """Say who holds up a job that runs now, seen from outside; nothing is sent to it.

    Looks at this host, at --hosts by ssh, or where --via leads ('docker exec -i NAME').
    """
    if named := next((name for name in _NOT_HERE if given[name] is not None), None):
        raise UsageError(
            f"hang: --{named.replace('_', '-')} has no meaning here; it takes --hosts, --hostfile, --via"
        )
    options = replace(parse("hang", site, {**given, "via": None}), via=given["via"])  # here it needs no --hosts
    return command.run(options, seconds, passive=passive)
