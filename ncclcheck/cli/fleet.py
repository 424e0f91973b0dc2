"""`ncclcheck fleet`."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from ncclcheck.base.exits import Exit
from ncclcheck.cli.common import HELP, SiteCommand, with_options
from ncclcheck.fleet import page, questions, store, text
from ncclcheck.reports.judgement.jsondoc import printable
from ncclcheck.results import finish, outputs
from ncclcheck.run.plan.option_table import OUTPUT, CommandOption, NumberRange, WordChoice

_NUMBER = NumberRange(1, 100_000, whole=True)
_DAYS = CommandOption("--days", "look at the newest days only", _NUMBER, metavar="N", variable=False)
_FORM = CommandOption(
    "--output", "form of what is printed", WordChoice(("text", "json")), short="-o", group=OUTPUT, default="text",
    show_default=True, variable=False,
)  # fmt: skip
_HTML = CommandOption("--html", "write a page with trends", group=OUTPUT, metavar="FILE", variable=False)
_EPILOG = """\b
Exit codes:
  0    no node fails again and again or became slower, and none fail together
  1    some do
  2    wrong usage, or a folder without results
"""


@click.command("fleet", cls=SiteCommand, epilog=_EPILOG, context_settings=HELP)
@click.argument("folder", metavar="DIR")
@with_options(_DAYS, _FORM, _HTML)
def fleet(folder: str, days: int | None, output: str, html: str | None, **_: Any) -> int:
    """Ask the kept results of a fleet who fails or slows down.

    Those of report --parquet DIR: who fails again, who slows down, and which fail together.

    Measures nothing. Says also what an upgrade changed.
    """
    if html is not None:
        outputs.check_file("--html", html)
    with store.opened(folder) as tables:
        answer = questions.asked(tables, days)
    written = html is None or outputs.write_file(html, page.page(answer).encode(errors="backslashreplace"))
    if output == "json":
        printed = finish.emit(printable(msgspec.json.encode(answer)).decode() + "\n")
    else:
        printed = finish.say(text.text(answer))
    if answer.repeats or answer.slower or answer.together:
        return Exit.FAILED
    return Exit.READY if written and printed else Exit.INCOMPLETE
