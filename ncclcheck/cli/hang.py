"""`ncclcheck hang`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import HELP, MEASURE, WHERE, Number, SiteCommand, common, option, parse, plain_option
from ncclcheck.commands import hang as command
from ncclcheck.run.plan.config import Site

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
    "--passive",
    group=MEASURE,
    is_flag=True,
    help="ask ranks for nothing: no py-spy, no Flight Recorder by its pipe, no --stacks-signal",
)
@option(
    "--ras",
    group=MEASURE,
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="ask NCCL's RAS; auto leaves out versions that may crash when they are asked",
)
@option(
    "--stacks-signal",
    group=MEASURE,
    type=click.Choice(["USR1", "USR2"]),
    metavar="NAME",
    help="the job gave this signal (USR1, USR2) to faulthandler.register: send it to suspects and one other rank",
)
@plain_option(
    "--job", group=WHERE, metavar="ID", help="a running job of Slurm: a step beside its own (srun --overlap)"
)
@plain_option(
    "--pods", group=WHERE, metavar="SELECTOR", help="pods of Kubernetes by label: app=train (kubectl exec)"
)
@plain_option("--container", "-c", group=WHERE, metavar="NAME", default="", help="which container of --pods")
@plain_option("--namespace", group=WHERE, metavar="NAME", default="", help="the namespace of --pods")
@common
@click.pass_obj
def hang(site: Site, /, seconds: float, passive: bool, ras: str, stacks_signal: str | None, **given: Any) -> int:
    """Say who holds up a job that runs now, seen from outside; it is not changed.

    Looks at this host, at --hosts by ssh, into a --job of Slurm or the --pods of Kubernetes, or where --via leads
    ('docker exec NAME').
    """
    place = command.Place(*(given.pop(name) or "" for name in command.Place._fields))
    _check(place, given)
    if named := next((name for name in _NOT_HERE if given[name] is not None), None):
        raise UsageError(
            f"hang: --{named.replace('_', '-')} has no meaning here; it takes --hosts, --job, --pods, --via"
        )
    options = replace(parse("hang", site, {**given, "via": None}), via=given["via"])  # here it needs no --hosts
    return command.run(options, seconds, passive=passive, place=place, ras=ras, signal=stacks_signal or "")


def _check(place: command.Place, given: dict[str, Any]) -> None:
    """Raises UsageError for two places, or for half of one."""
    named = {"--job": place.job, "--pods": place.pods, "--hosts": given["hosts"], "--hostfile": given["hostfile"]}
    if len(places := [name for name, value in named.items() if value]) > 1:
        raise UsageError(f"hang: {' and '.join(places)}: give one of them")
    if place.pods and given["via"]:
        raise UsageError("hang: --via has no meaning with --pods; --container names one of theirs")
    if (place.container or place.namespace) and not place.pods:
        raise UsageError("hang: --container and --namespace go with --pods")
