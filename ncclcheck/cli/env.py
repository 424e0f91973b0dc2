"""`ncclcheck env`."""

from __future__ import annotations

from typing import Any

import click

from ncclcheck.cli.common import HELP, SiteCommand, common, parse
from ncclcheck.commands import env as command
from ncclcheck.run.plan.config import SiteFiles


@click.command("env", cls=SiteCommand, context_settings=HELP)
@common
@click.pass_obj
def env(site: SiteFiles, /, **given: Any) -> int:
    """Facts of this node or of all nodes, and whether they agree. Needs no GPU, no privileges, no torch."""
    return command.run(parse("env", site, given))
