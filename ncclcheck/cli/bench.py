"""`ncclcheck bench`."""

from __future__ import annotations

from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import (
    HELP,
    SECONDS,
    VERDICT,
    Number,
    SiteCommand,
    common,
    option,
    parse,
)
from ncclcheck.cli.jobs import of_jobs, wishes
from ncclcheck.commands import bench as command
from ncclcheck.commands import trial
from ncclcheck.run.plan import bench_plan, faults, trial_plan
from ncclcheck.run.plan.config import Site


@click.command("bench", cls=SiteCommand, context_settings=HELP)
@common
@of_jobs(f"{faults.FORMS}; {faults.NUMBERED}")
@option("--ops", metavar="LIST", help=f"operations: {', '.join(bench_plan.OPS)}")
@option("--sizes", metavar="SPEC", help="bytes: a range 1K:256M:x4 or a list 1K,64M")
@option(
    "--reduce-op", type=click.Choice(bench_plan.REDUCE_OPS), default="sum", show_default=True, help="reduction"
)
@option("--dtype", type=click.Choice(bench_plan.DTYPES), help="element type  [default: float32]")
@option("--time-budget", type=Number(0.1, 86400, "seconds"), metavar="S", help="seconds of measuring")
@option(
    "--min-busbw",
    group=VERDICT,
    metavar="SPEC",
    default="",
    help="fail below so many GB/s: 40 or all_reduce=40,all_gather=30",
)
@option("--quick", is_flag=True, help="a few operations, about 4 s of measuring")
@option("--full", is_flag=True, help="all operations, more and larger sizes, about 90 s of measuring")
@option("--soak", type=SECONDS, metavar="S", help="then repeat verified collectives for S seconds")
@option(
    "--with",
    "with_",
    metavar="VAR=VALUE",
    help="A/B test of a setting in alternating short jobs; VAR= unsets it",
)
@click.pass_obj
def bench(site: Site, /, **given: Any) -> int:
    """One torchrun job over all nodes: every collective measured and checked, every rank accounted for."""
    options, wanted = parse("bench", site, given), _bench_options(given)
    if given["with_"] is None:
        return command.run(options, wanted)
    if wanted.soak:
        raise UsageError("--with and --soak: give one of them")
    return trial.run(options, wanted, trial_plan.setting(given["with_"]))


def _bench_options(given: dict[str, Any]) -> bench_plan.BenchOptions:
    if given["quick"] and given["full"]:
        raise UsageError("--quick and --full: give one of them, or none for the standard level")
    return bench_plan.BenchOptions(
        ops=None if given["ops"] is None else bench_plan.ops(given["ops"]),
        sizes=None if given["sizes"] is None else bench_plan.sizes(given["sizes"]),
        reduce_op=given["reduce_op"],
        dtype=given["dtype"],
        time_budget=given["time_budget"],
        soak=given["soak"],
        **wishes(given),
        level="quick" if given["quick"] else "full" if given["full"] else "standard",
    )
