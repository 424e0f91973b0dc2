"""`ncclcheck explain`."""

from __future__ import annotations

import click

from ncclcheck.base.errors import UsageError
from ncclcheck.base.exits import Exit
from ncclcheck.reports.judgement import pages
from ncclcheck.results import finish


@click.command("explain", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("words", nargs=-1, metavar="[CODE | WORD...]")
def explain(words: tuple[str, ...]) -> int:
    """Show a check's page, search all pages, or list all.

    Offline, and the same text as docs/checks.
    """
    try:
        printed = finish.emit(pages.answer(" ".join(words)) if words else pages.listing())
    except KeyError as error:
        raise UsageError(f"explain: {error.args[0]}") from None
    return Exit.READY if printed else Exit.INCOMPLETE
