"""`ncclcheck watch`."""

from __future__ import annotations

from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import HELP, SiteCommand, with_options
from ncclcheck.commands import watch as command
from ncclcheck.run.plan.config import SiteFiles
from ncclcheck.run.plan.option_table import options_of, read
from ncclcheck.run.plan.options import Options

_EPILOG = """\b
Exit codes: COMMAND's own; a signal that ends COMMAND ends this too. Else:
  2    wrong usage
  75   --on-stall kill ended it: start it again, without the nodes of --exclude-file
  126  COMMAND could not be started; 127: it was not found
"""


@click.command(
    "watch", cls=SiteCommand, epilog=_EPILOG, context_settings={**HELP, "allow_interspersed_args": False}
)
@with_options(*options_of(command.WatchOptions))
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.pass_obj
def watch(_: SiteFiles, /, command_line: tuple[str, ...], **given: Any) -> int:
    """Run COMMAND as it is; say why when it fails or stalls.

    The page names who was first, why, and what followed.

    COMMAND is torchrun, accelerate, python, srun or any other; its input, output, signals and exit code stay.
    """
    if not command_line and not given["print_env"]:
        raise UsageError("watch: no command was given; type: ncclcheck watch -- COMMAND...")
    return command.run(read(command.WatchOptions, given, command=command_line), Options(command="watch"))
