"""`ncclcheck data`."""

from __future__ import annotations

from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import HELP, SECONDS, WHERE, JsonObject, Number, SiteCommand, common, option, parse
from ncclcheck.commands import data as command
from ncclcheck.run.plan import data_plan, smoke_plan
from ncclcheck.run.plan.config import Site


@click.command("data", cls=SiteCommand, context_settings=HELP)
@click.argument("factory", required=False)
@common
@option("--kwargs", type=JsonObject(), metavar="JSON", default="{}", help="keyword arguments for the factory")
@option(
    "--time-budget",
    type=SECONDS,
    default=30.0,
    show_default=True,
    metavar="S",
    help="seconds for reading and measuring, once the factory is done",
)
@option(
    "--factory-limit",
    type=SECONDS,
    default=300.0,
    show_default=True,
    metavar="S",
    help="time limit of the factory in seconds",
)
@option(
    "--workers",
    type=Number(1, 64, whole=True),
    metavar="N",
    help="processes that read concurrently  [default: by cores, at most 4]",
)
@option(
    "--need",
    type=Number(0, 1e9, "samples a second"),
    default=0.0,
    metavar="N",
    help="samples per second that one GPU needs",
)
@option(
    "--nproc-per-node",
    group=WHERE,
    type=Number(1, 1024, whole=True),
    metavar="N",
    help="ranks per node in your job; default: its GPUs",
)
@click.pass_obj
def data(site: Site, /, **given: Any) -> int:
    """Check your own Dataset or DataLoader: worker races, ranks, batches, memory, speed.

    FACTORY is MODULE:NAME or path/to/file.py:NAME: a Dataset, an IterableDataset, a DataLoader, a class or a
    function that gives one, (dataset, loader_kwargs), or an object with train_dataloader(). Type it in the folder
    from which you train.
    """
    return command.run(parse("data", site, given), _data_options(given))


def _data_options(given: dict[str, Any]) -> data_plan.DataOptions:
    if not given["factory"] and given["from_file"] is None:
        raise UsageError("FACTORY: it is missing; allowed are MODULE:NAME and path/to/file.py:NAME")
    return data_plan.DataOptions(
        factory=smoke_plan.reference("FACTORY", given["factory"]) if given["factory"] else "",
        kwargs=given["kwargs"],
        time_budget=given["time_budget"],
        factory_limit=given["factory_limit"],
        workers=given["workers"],
        need=given["need"],
        nproc_per_node=given["nproc_per_node"],
    )
