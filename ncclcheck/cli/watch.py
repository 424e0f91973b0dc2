"""`ncclcheck watch`."""

from __future__ import annotations

import shutil
from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import HELP, MEASURE, OUTPUT, Number, SiteCommand, option, plain_option
from ncclcheck.commands import watch as command
from ncclcheck.run.plan.config import Site
from ncclcheck.run.plan.options import Options

_EPILOG = """\b
Exit codes: COMMAND's own; a signal that ends COMMAND ends this too. Else:
  2    wrong usage
  75   --on-stall kill ended it: start it again, without the nodes of --exclude-file
  126  COMMAND could not be started; 127: it was not found
"""


@click.command("watch", cls=SiteCommand, epilog=_EPILOG, context_settings=HELP)
@plain_option(
    "--box",
    group=OUTPUT,
    metavar="DIR",
    help="where to write; kept  [default: ./ncclcheck-box-..., removed after success]",
)
@option(
    "--on-stall",
    group=MEASURE,
    type=click.Choice(["report", "dump", "kill"]),
    default="report",
    show_default=True,
    help="what follows a stall: look and say so; ask for Flight Recorder's dumps too; end the job",
)
@option(
    "--stall-after",
    group=MEASURE,
    type=Number(5, 86400, "seconds"),
    metavar="S",
    default=command.STALL_S,
    show_default=True,
    help="a stall: so long without any sign of life, or three times the longest silence so far",
)
@option(
    "--exclude-file",
    group=OUTPUT,
    metavar="FILE",
    help="write the nodes at fault, as sbatch --exclude= takes them",
)
@plain_option(
    "--print-env", group=OUTPUT, is_flag=True, help="print what would be set, as export lines; start nothing"
)
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.pass_obj
def watch(_: Site, /, command_line: tuple[str, ...], **given: Any) -> int:
    """Run COMMAND as it is, and say who was first and why when it fails or stalls.

    COMMAND is torchrun, accelerate, python, srun or any other; its input, output, signals and exit code stay.
    """
    if not command_line and not given["print_env"]:
        raise UsageError("watch: no command was given; type: ncclcheck watch -- COMMAND...")
    if command_line and shutil.which(command_line[0]) is None:
        raise UsageError(f"COMMAND: {command_line[0]!r} is not found on PATH")
    wanted = command.Watch(
        command=command_line,
        box=given["box"],
        on_stall=given["on_stall"],
        stall_after=given["stall_after"],
        exclude_file=given["exclude_file"] or "",
        print_env=given["print_env"],
    )
    return command.run(wanted, Options(command="watch"))
