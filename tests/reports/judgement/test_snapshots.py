"""Every rule against clusters with a story: it speaks where it must, names the culprit, and no more."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import State, Verdict, worst
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import Rule, all_rules
from ncclcheck.reports.output import terminal
from ncclcheck.reports.text.words.fold import fold_names
from tests.conftest import ROOT
from tests.helpers import stories
from tests.helpers.stories import Told
from tests.reports.rules.log import test_log_stories

BAD = (State.FAIL, State.WARN)
OF_LOGS = {rule.code for rule in test_log_stories.RULES} | {test_log_stories.NOT_READ}
ISSUED = {line.split()[0] for line in (ROOT / "tests/codes.txt").read_text().splitlines()}

OF_CLUSTERS = [rule for rule in all_rules() if rule.code in ISSUED - OF_LOGS]


@pytest.fixture(params=stories.NAMES, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def story(name: str) -> Told:
    return stories.load(name)


@pytest.fixture(scope="module")
def document(name: str) -> Document:
    return stories.document(name)


def test_it_is_judged_as_expected(story: Told, document: Document) -> None:
    states = {verdict.code: verdict.state.value for verdict in document.verdicts}
    wrong = {code: states[code] for code, state in story.expect.items() if not _as_told(states[code], state)}
    assert not wrong, f"expected {story.expect}"


def _as_told(state: str, expected: str) -> bool:
    return state != expected.removeprefix("not ") if expected.startswith("not ") else state == expected


def test_nothing_else_is_called_bad(story: Told, document: Document) -> None:
    """A false alarm in one story is one on somebody's cluster."""
    bad = {verdict.code for verdict in document.verdicts if verdict.state in BAD}
    assert bad <= set(story.expect)


def test_the_culprit_is_named(story: Told, document: Document) -> None:
    names = story.names or [node.name for node in story.nodes]
    for verdict in document.verdicts:
        if verdict.state in BAD:
            assert any(name in _said(verdict) for name in names), _said(verdict)


def _said(verdict: Verdict) -> str:
    bad = [finding for finding in verdict.findings if finding.state in BAD]
    return fold_names(f.where.node or "" for f in bad) + " ".join(f" {f.where} {f.what}" for f in bad)


def test_the_report_fits_80_columns(document: Document) -> None:
    fixes = [r for v in document.verdicts for f in v.findings for r in f.remedies]
    commands = {line.strip() for fix in fixes for command in fix.commands for line in command.splitlines()}
    report = terminal.text(document, terminal.Style(width=80))
    long = [line for line in report.splitlines() if len(line) > 80]
    assert [line for line in long if line.strip() not in commands and len(line.split()) > 2] == []


@cache
def _clusters() -> list[Cluster]:
    return [stories.load(name).cluster for name in stories.NAMES]


@pytest.mark.parametrize("rule", OF_CLUSTERS, ids=lambda rule: rule.code)
def test_every_rule_is_raised_by_a_story(rule: Rule) -> None:
    states = [verdict.state for cluster in _clusters() for verdict in judge(cluster, [rule])]
    seen = [state for state in states if state is not State.UNKNOWN or rule.worst is State.UNKNOWN]
    assert worst(seen) is rule.worst


def test_a_fact_that_does_not_exist_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stories, "FOLDER", tmp_path)
    node = {"name": "a", "host": {"type": "host", "hostnam": "a"}}
    text = json.dumps({"about": "", "source": "", "expect": {}, "nodes": [node]})
    (tmp_path / "misspelt.json").write_text(text)
    with pytest.raises(AssertionError, match="hostnam"):
        stories.load("misspelt")
