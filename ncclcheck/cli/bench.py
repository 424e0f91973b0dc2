"""`ncclcheck bench`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import HELP, SiteCommand, of_job, parse, with_options
from ncclcheck.commands import bench as command
from ncclcheck.commands.steps import trial
from ncclcheck.probes import facts
from ncclcheck.run.plan import trial_plan
from ncclcheck.run.plan.bench_plan import BenchOptions
from ncclcheck.run.plan.config import SiteFiles
from ncclcheck.run.plan.option_table import CommandOption, read

_WITH = CommandOption(
    "--with", "A/B test of a setting in alternating short jobs; VAR= unsets it", metavar="VAR=VALUE"
)


@click.command("bench", cls=SiteCommand, context_settings=HELP)
@of_job(BenchOptions)
@with_options(_WITH)
@click.pass_obj
def bench(site: SiteFiles, /, **given: Any) -> int:
    """Measure and check every collective in one job over all nodes.

    A real torchrun job, in which every rank is accounted for.
    """
    options, wanted = parse("bench", site, given), read(BenchOptions, given)
    options = replace(options, policy=facts.replace(options.policy, min_busbw=wanted.min_busbw))
    if given["with"] is None:
        return command.run(options, wanted)
    if wanted.soak:
        raise UsageError("--with and --soak: give one of them")
    return trial.run(options, wanted, trial_plan.setting(given["with"]))
