"""Every LOG rule has a story: a small log, tests/data/logs/stories/CODE.log, that raises it to its worst."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.reports.judgement.rule import Rule, all_rules
from ncclcheck.reports.output import terminal
from ncclcheck.reports.subjects.logs.words import meanings
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options
from tests.conftest import ROOT
from tests.helpers.logs import judged, parsed, raised

FOLDER = ROOT / "tests/data/logs/stories"
OF_DUMPS = range(130, 150)  # the Flight Recorder's rules have stories among tests/snapshots
NOT_READ = "LOG003"  # tests/commands/test_logs_command.py: a file that cannot be read
ALWAYS = {"LOG001", "LOG002", "LOG004", "LOG005", "LOG095"}  # symptoms, beside what is more exact
RULES = [
    rule
    for rule in all_rules()
    if rule.code.startswith("LOG") and int(rule.code[3:]) not in OF_DUMPS and rule.code != NOT_READ
]


def _story(code: str) -> str:
    return (FOLDER / f"{code}.log").read_text()


def _expected(text: str) -> dict[str, str]:
    first, _, _ = text.partition("\n")
    return dict(part.split("=", 1) for part in first.removeprefix("# expect ").split())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_is_raised_by_its_story_and_no_other_cause_is_named(rule: Rule) -> None:
    text = _story(rule.code)
    expected, states = _expected(text), raised(text)
    assert expected[rule.code] == rule.worst.value == judged(text)[rule.code].state.value
    assert {code for code in states if code not in ALWAYS} <= set(expected)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.log")), ids=lambda path: path.stem)
def test_the_report_fits_80_columns(path: Path) -> None:
    cluster = Cluster(command="logs", measurements=Measurements(logs=parsed(path.read_bytes())))
    story = finish.Story(started="2026-01-01T00:00:00+00:00", seconds=1.0)
    document = finish.make(cluster, Options(command="logs", only=("LOG",)), story)
    commands = {c for v in document.verdicts for f in v.findings for r in f.remedies for c in r.commands}
    long = [line for line in terminal.text(document, terminal.Style(width=80)).splitlines() if len(line) > 80]
    assert [line for line in long if line.strip() not in commands and len(line.split()) > 2] == []


def test_every_sign_is_read_by_a_rule_or_known_as_what_follows_or_as_harmless() -> None:
    from ncclcheck.probes.logs.signs import all_signs  # noqa: PLC0415

    sources = [path for path in (ROOT / "ncclcheck/reports").rglob("*.py") if path.name != "meanings.py"]
    read = "\n".join(path.read_text() for path in sources)
    known = {*meanings.CONSEQUENCES, *meanings.HARMLESS, *meanings.CONTEXT}
    assert [sign.name for sign in all_signs() if sign.name not in known and f'"{sign.name}"' not in read] == []
    assert {*meanings.CONSEQUENCES}.isdisjoint(meanings.HARMLESS)


def test_no_log_no_verdict() -> None:
    assert {code for code, verdict in judged().items() if verdict.state.value != "skipped"} <= {NOT_READ}
