"""`ncclcheck data`."""

from __future__ import annotations

from typing import Any

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.cli.common import HELP, SiteCommand, common, parse, with_options
from ncclcheck.commands import data as command
from ncclcheck.run.plan.config import SiteFiles
from ncclcheck.run.plan.data_plan import DataOptions
from ncclcheck.run.plan.option_table import options_of, read
from ncclcheck.run.plan.smoke_plan import reference


@click.command("data", cls=SiteCommand, context_settings=HELP)
@click.argument("factory", required=False)
@common
@with_options(*options_of(DataOptions))
@click.pass_obj
def data(site: SiteFiles, /, factory: str | None, **given: Any) -> int:
    """Check your own Dataset or DataLoader: races, ranks, speed.

    FACTORY is MODULE:NAME or path/to/file.py:NAME: a Dataset, an IterableDataset, a DataLoader, a class or a
    function that gives one, (dataset, loader_kwargs), or an object with train_dataloader(). Type it in the folder
    from which you train.
    """
    options = parse("data", site, given)
    if not factory and options.from_file is None:
        raise UsageError("FACTORY: it is missing; allowed are MODULE:NAME and path/to/file.py:NAME")
    return command.run(options, read(DataOptions, given, factory=reference("FACTORY", factory) if factory else ""))
