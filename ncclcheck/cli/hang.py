"""`ncclcheck hang`."""

from __future__ import annotations

from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import HELP, SiteCommand, common, parse, with_options
from ncclcheck.commands import hang as command
from ncclcheck.commands.hang import HangOptions
from ncclcheck.run.plan.config import SiteFiles
from ncclcheck.run.plan.option_table import options_of, read

_EPILOG = """\b
Exit codes:
  0    the jobs that were seen advance, begin or have ended
  1    a rank holds a job up, or all wait for each other; the report names it
  2    wrong usage
  3    not known: no process was seen, a host could not be looked at, or a job shows neither
"""
# Of the common options those that say where, and that mean nothing here.
_NOT_HERE = ("nodes", "launch", "node_rank", "rdzv_endpoint", "secret_file", "wait", "sysroot", "host_root")


@click.command("hang", cls=SiteCommand, epilog=_EPILOG, context_settings=HELP)
@with_options(*options_of(HangOptions))
@common
@click.pass_obj
def hang(site: SiteFiles, /, **given: Any) -> int:
    """Say who holds up a job that runs now; it is not changed.

    Looks at this host, at --hosts by ssh, into a --job of Slurm or the --pods of Kubernetes, or where --via leads
    ('docker exec NAME').
    """
    wanted = read(HangOptions, given)
    _check(wanted, given)
    if named := next((name for name in _NOT_HERE if given[name] is not None), None):
        raise UsageError(
            f"hang: --{named.replace('_', '-')} has no meaning here; it takes --hosts, --job, --pods, --via"
        )
    via = given.pop("via")  # here it needs no --hosts
    return command.run(parse("hang", site, given, via=via), wanted)


def _check(wanted: HangOptions, given: dict[str, Any]) -> None:
    """Raises UsageError for two places, or for half of one."""
    places = [f"--{name}" for name in ("job", "pods", "hosts", "hostfile") if given[name] is not None]
    # A variable that is not set, as in --job "$JOB": this host is another place than was meant.
    if empty := next((place for place in places if not given[place[2:]].strip()), None):
        raise UsageError(f"hang: {empty}: it is empty")
    if len(places) > 1:
        raise UsageError(f"hang: {' and '.join(places)}: give one of them")
    if wanted.pods and given["via"]:
        raise UsageError("hang: --via has no meaning with --pods; --container names one of theirs")
    if (wanted.container or wanted.namespace) and not wanted.pods:
        raise UsageError("hang: --container and --namespace go with --pods")
