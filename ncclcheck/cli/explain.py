"""`ncclcheck explain`."""

from __future__ import annotations

import click

from ncclcheck import finish
from ncclcheck.errors import UsageError
from ncclcheck.reports import pages


@click.command("explain", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("code", required=False)
def explain(code: str | None) -> int:
    """Show a rule's page, or list all rules. Offline, and the same text as docs/checks."""
    try:
        finish.emit(pages.listing() if code is None else pages.page(code))
    except KeyError as error:
        raise UsageError(f"explain: {error.args[0]}") from None
    return 0
