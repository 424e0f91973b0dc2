"""Document -> the page. All that comes from outside is escaped, and no script but ours may run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.output.html import facts, sections
from ncclcheck.reports.output.html.limits import PageLimits, first
from ncclcheck.reports.output.html.picture import Figure
from ncclcheck.reports.subjects.data import dataset_text
from ncclcheck.reports.subjects.job import trial_text, tuning_text
from ncclcheck.reports.subjects.logs.answer import story_text
from ncclcheck.reports.subjects.training import steps_text
from ncclcheck.reports.text import closing, measured, recommend_text, summary, table
from ncclcheck.reports.text.groups import order
from ncclcheck.reports.text.words.fold import fold_names
from ncclcheck.reports.text.words.visible import visible

_WIDTH = 100  # columns of the tables in <pre>: the text report's usual width, as wide as the page at its font size


def render(document: Document, figures: Sequence[Figure], limits: PageLimits) -> str:
    """The whole file."""
    environment = _environment(limits)
    return environment.get_template("report.html").render(
        document=document,
        figures=figures,
        limits=limits,
        decision=closing.decision(document),
        title=summary.title(document),
        said=[*closing.compared(document), *closing.culprits(document)],
        start=sections.first_thing(document),
        told={state: sections.findings(document, state, limits) for state in State},
        settings=sections.settings(document, limits),
        forms=sections.forms(document),
        nothing=recommend_text.NOTHING if recommend_text.may_say_nothing(document) else "",
        families=sections.families(document),
        story=story_text.text(document, _WIDTH),
        verdicts=sorted(document.verdicts, key=lambda verdict: (verdict.state.rank, *order(verdict))),
        tables=_tables(document),
        same=[(label, words, _on(names, document)) for label, words, names in summary.folded(document)],
        facts=facts.folded([entry.facts for entry in document.nodes], limits.facts),
        style=Markup(_file("report.css")),
        script=Markup(_file("report.js")),
        script_hash=_hash(_file("report.js")),
    )


def _environment(limits: PageLimits) -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shower(limits.characters),
    )
    made.globals.update(first=first, State=State)
    return made


@cache
def _file(name: str) -> str:
    return files("ncclcheck.reports.output.html").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _shower(most: int) -> Callable[[Any], Any]:
    """How a value is shown: not longer than a limit, and with nothing in it that cannot be seen."""

    def shown(value: Any) -> Any:
        if isinstance(value, Markup) or not isinstance(value, str):
            return value
        return visible(value if len(value) <= most else value[:most] + " ... (cut)")

    return shown


def _on(names: list[str], document: Document) -> str:
    return "all" if len(names) == len(document.nodes) else fold_names(names)


def _tables(document: Document) -> list[tuple[str, str]]:
    """The tables of the text report, as they stand."""
    beside = "" if document.measurements.collectives else "\n".join(measured.lines(document.measurements, _WIDTH))
    tables = (
        ("Collectives", table.collectives(document, _WIDTH) or beside),
        ("The setting that was tried", trial_text.text(document, _WIDTH)),
        ("The settings that were tuned", tuning_text.text(document, _WIDTH)),
        ("The dataset", dataset_text.text(document, _WIDTH)),
        ("The training run", steps_text.text(document, _WIDTH)),
    )
    return [(title, words) for title, words in tables if words]
