"""The command line: flags in, exit code out; decides nothing."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pkgutil import iter_modules
from typing import NoReturn

import click

from ncclcheck import __version__
from ncclcheck.base.errors import UsageError
from ncclcheck.base.exits import Exit, of_signal
from ncclcheck.base.leaving import do_last_acts
from ncclcheck.base.progress import complain

_EPILOG = """\b
Begin with:
  ncclcheck env                    facts and settings of this node, in a second
  ncclcheck bench --nodes 2        a real job on two simulated nodes of this machine
  ncclcheck bench --hosts a,b      the same on two machines, by ssh
  ncclcheck tune --hosts a,b       which settings gain between them, by measuring
  ncclcheck logs train.log         the cause, out of the log of a job that died
  ncclcheck hang                   who holds up the job that runs here now
  ncclcheck watch -- COMMAND       the job as it is; who was first and why, when it dies or stalls
  ncclcheck script train.py        what would hang or go wrong, read in the training script
  ncclcheck preflight -- COMMAND   in a job script: start COMMAND where all is well

\b
Exit codes:
  0    ready: ok, skipped, note, warn; unknown for lack of privilege or of a tool
  1    at least one check failed (--strict: also warn and unknown)
  2    wrong usage or configuration
  3    could not finish, and nothing failed in what was seen
  130, 143, 129  ended by SIGINT, SIGTERM, SIGHUP; what was gathered is still reported
"""


_ORDER = (
    "env",
    "bench",
    "tune",
    "data",
    "smoke",
    "preflight",
    "logs",
    "hang",
    "watch",
    "script",
    "report",
    "fleet",
    "explain",
)


def _commands() -> Iterator[str]:
    """Each module beside this one is a command, but for what they share; those that --help lists first, first."""
    commands = {module.name for module in iter_modules(__path__)} - {"common"}
    yield from (name for name in _ORDER if name in commands)
    yield from sorted(commands - {*_ORDER})


COMMANDS = (*_commands(),)


class _LazyCommands(click.Group):
    """Loads a command's module only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"ncclcheck.cli.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            allowed = " ".join(self.list_commands(ctx))
            raise UsageError(f"{name!r} is no command; allowed: {allowed}")
        return super().resolve_command(ctx, args)


@click.command(
    cls=_LazyCommands,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="ncclcheck")
def cli() -> None:
    """Find what is wrong with a GPU cluster before the job does: NCCL, network, nodes."""


def main() -> NoReturn:
    """Entry point of the program; the only place that exits."""
    _leave(_run())


def _run() -> int:
    try:
        code = cli.main(prog_name="ncclcheck", standalone_mode=False)
    except UsageError as error:
        return _complain(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write((error.ctx.get_help() if error.ctx else str(error)) + "\n")
        return Exit.USAGE
    except click.ClickException as error:
        return _complain(error.format_message())
    except (click.exceptions.Abort, KeyboardInterrupt):
        return of_signal(2)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except Exception as error:
        return _defect(error)
    return code if isinstance(code, int) else Exit.READY


def _defect(error: Exception) -> int:
    """What nobody foresaw: one line with its place, and never the code of a failed check."""
    from ncclcheck.probes.machine.host.tasks import exhausted

    if words := exhausted(error):
        complain(words)
        return Exit.INCOMPLETE
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(last.filename)}:{last.lineno}"
    _complain(f"internal error: {type(error).__name__}: {error} ({place})")
    return Exit.INCOMPLETE


def _complain(message: str) -> int:
    complain(message)
    return Exit.USAGE


def _leave(code: int) -> NoReturn:
    """Leave without waiting for threads that hang in the kernel."""
    do_last_acts()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(int(code))
