"""`ncclcheck tune`."""

from __future__ import annotations

from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import HELP, Number, SiteCommand, common, option, parse, plain_option
from ncclcheck.cli.jobs import of_jobs, wishes
from ncclcheck.commands import tune as command
from ncclcheck.run.plan import bench_plan, faults, tune_plan
from ncclcheck.run.plan.config import Site


@click.command("tune", cls=SiteCommand, context_settings=HELP)
@common
@of_jobs(f"{faults.FORMS}; {faults.NUMBERED}")
@option("--ops", metavar="LIST", help="operations of the job  [default: all_reduce]")
@option("--sizes", metavar="SPEC", help="bytes of the job's messages: a range 1M:64M:x8 or a list 1M,64M")
@plain_option(
    "--job-files",
    multiple=True,
    metavar="FILE",
    help="read operations and sizes from Flight Recorder dumps, NCCL's COLL lines or Inspector's files",
)
@plain_option(
    "--try", "tries", multiple=True, metavar="VAR=VALUE", help="try these settings instead of the usual ones"
)
@option("--time-budget", type=Number(0.1, 3600, "seconds"), metavar="S", help="seconds of measuring in each job")
@option("--quick", is_flag=True, help="4 pairs of jobs for each setting")
@option("--full", is_flag=True, help="up to 18 pairs of jobs for each setting")
@click.pass_obj
def tune(site: Site, /, **given: Any) -> int:
    """Which settings gain here: measured in pairs of jobs, with intervals that hold for all together."""
    if given["quick"] and given["full"]:
        raise UsageError("--quick and --full: give one of them, or none for the standard level")
    if given["job_files"] and (given["ops"] or given["sizes"]):
        raise UsageError("--job-files: they say the operations and sizes; give no --ops and --sizes beside them")
    wanted = tune_plan.TuneOptions(
        ops=None if given["ops"] is None else bench_plan.ops(given["ops"]),
        sizes=None if given["sizes"] is None else bench_plan.sizes(given["sizes"]),
        time_budget=given["time_budget"],
        **wishes(given),
        level="quick" if given["quick"] else "full" if given["full"] else "standard",
        tries=tune_plan.tries(given["tries"]),
    )
    return command.run(parse("tune", site, given), wanted, given["job_files"])
