"""Markdown, JUnit and Prometheus, each read by a parser of its format."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import xmlschema
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from prometheus_client.parser import text_string_to_metric_families

from ncclcheck.probes.facts import replace
from ncclcheck.reports.judgement.findings import Finding, State, Where, fail, seen, you
from ncclcheck.reports.judgement.jsondoc import Document, Recommendation
from ncclcheck.reports.output import junit, markdown, prometheus
from ncclcheck.reports.text import closing
from tests.helpers import stories

_XSD = xmlschema.XMLSchema(Path(__file__).parents[2] / "data/junit.xsd")
STORIES = stories.NAMES[:: max(1, len(stories.NAMES) // 25)]
NASTY = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60) | st.sampled_from(
    [
        "@everyone",
        "]]>",
        "<script>",
        "```",
        "a|b",
        "\x00\x1b[31m",
        'q"\\',
        "# x",
        "nccl#12",
        "\ufffe",
        "</details>",
        "- x",
        "1. x",
        "=====",
        "~~~",
        "&lt;b&gt;",
        "[x](http://y)",
    ]
)


@cache
def _small() -> Document:
    """One of few checks, so that many examples are quick."""
    document = stories.document("healthy")
    return replace(document, verdicts=document.verdicts[:4], nodes=document.nodes[:1])


def _shape(text: str) -> list[str]:
    """The parts of a page that a word must not add to."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return [token.type for token in tokens if token.type in ("heading_open", "html_block", "table_open", "fence")]


def _with(document: Document, *findings: Finding) -> Document:
    """The document with these findings in its first verdict."""
    verdict = replace(document.verdicts[0], state=State.FAIL, findings=list(findings))
    return replace(document, verdicts=[verdict, *document.verdicts[1:]])


def _finding(words: str, node: str = "gpu-a17") -> Finding:
    where = Where(node=node, device=words)
    return fail(where, words, why=words, owner="node", evidence=[seen(words, words)], fix=[you(words, words)])


def _case(document: Document, code: str) -> dict[str, Any]:
    suites: Any = _XSD.to_dict(junit.text(document))
    return next(case for case in suites["testsuite"][0]["testcase"] if case["@name"].startswith(code))


@pytest.mark.parametrize("name", STORIES)
def test_junit_is_valid_and_counts_as_the_document_does(name: str) -> None:
    document = stories.document(name)
    suites: Any = _XSD.to_dict(junit.text(document))
    cases = suites["testsuite"][0]["testcase"]
    counter = Counter(kind for case in cases for kind in ("failure", "error", "skipped") if kind in case)
    assert len(cases) == suites["@tests"] == len(document.verdicts)
    assert counter["failure"] == suites["@failures"] == document.counts["fail"]
    assert counter["error"] == suites["@errors"]
    assert counter["skipped"] + counter["error"] == document.counts["skipped"] + document.counts["unknown"]


def test_a_silent_node_is_an_error_and_an_unread_fact_is_skipped() -> None:
    assert "error" in _case(stories.document("a-node-never-answers"), "RUN001")
    assert _case(stories.document("pod-that-may-read-little"), "CON001")["skipped"]["@message"].startswith(
        "unknown: "
    )


@pytest.mark.parametrize("name", ["settings-nobody-reads", "pod-that-may-read-little", "a-node-never-answers",
                                  "one-node-in-another-subnet"])  # fmt: skip
def test_with_strict_whatever_is_not_well_fails(name: str) -> None:
    """Also beside a failure, which makes the exit code 1 by itself."""
    document = stories.document(name)
    bad = [v.code for v in document.verdicts if v.state in (State.FAIL, State.WARN, State.UNKNOWN)]
    strict: Any = _XSD.to_dict(junit.text(replace(document, strict=True)))
    failed = [case["@name"][:6] for case in strict["testsuite"][0]["testcase"] if "failure" in case]
    assert failed == bad
    assert strict["@errors"] == 0
    verdicts = [verdict for verdict in document.verdicts if verdict.state is State.WARN]
    assert all("system-out" in _case(document, verdict.code) for verdict in verdicts), "it passes, and says so"


@pytest.mark.parametrize("name", STORIES)
def test_prometheus_reads_every_metric_once(name: str) -> None:
    document = stories.document(name)
    samples = [
        sample for family in text_string_to_metric_families(prometheus.text(document)) for sample in family.samples
    ]
    keys = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples]
    assert len(keys) == len(set(keys))
    states = {sample.labels["state"]: sample.value for sample in samples if sample.name == "ncclcheck_state"}
    assert states == {state: float(state == document.state) for state in states}
    assert states[document.state] == 1
    counts = {sample.labels["state"]: sample.value for sample in samples if sample.name == "ncclcheck_checks"}
    assert counts == {state: float(number) for state, number in document.counts.items()}
    measured = [sample for sample in samples if sample.name == "ncclcheck_collective_seconds"]
    rows = {(r.op, r.bytes, r.dtype, r.nodes, r.ranks) for r in document.measurements.collectives if r.time_us}
    assert len(measured) == len(rows)


@pytest.mark.parametrize("name", STORIES)
def test_markdown_says_the_decision_and_every_failure(name: str) -> None:
    document = stories.document(name)
    text = markdown.text(document)
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inline = [token for token in tokens if token.type == "inline"]
    shown = "".join(child.content for token in inline for child in token.children or [] if child.type == "text")
    assert "".join(shown.split()).find("".join(closing.decision(document).split())[:40]) >= 0
    heads = [inline.content for inline, before in zip(tokens[1:], tokens, strict=False) if before.tag == "h3"]
    failed = {verdict.code for verdict in document.verdicts if verdict.state is State.FAIL}
    assert all(any(head.startswith("FAIL") and code[:3] in head for head in heads) for code in failed)


def test_markdown_of_a_large_disaster_fits_an_issue_the_worst_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "_ROOM", 5000)  # what many nodes have in common is said once: it fits
    document = stories.document("one-node-in-another-subnet")
    many = [_finding(f"finding {number} " + "x" * 3000, f"gpu-{number}") for number in range(500)]
    text = markdown.text(_with(document, *many))
    assert len(text) <= 5200
    assert text.index("### FAIL") < 3000
    assert "more sections do not fit here" in text
    assert text.count("```") % 2 == 0
    assert text.count("<details") == text.count("</details>")


@settings(deadline=None, max_examples=60)
@given(words=NASTY)
@example(words="_@")
@example(words="*a* `b` @_c_")
def test_no_word_breaks_out_of_its_place(words: str) -> None:
    document = _with(_small(), _finding(words, "n" + words))
    _XSD.validate(junit.text(document))
    families = text_string_to_metric_families(prometheus.text(document))
    samples = [sample for family in families for sample in family.samples if sample.name == "ncclcheck_findings"]
    assert any(sample.labels["node"] == ("n" + words).replace("\r", " ") for sample in samples)
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown.text(document))
    assert _shape(markdown.text(document)) == _shape(markdown.text(_with(_small(), _finding("word"))))
    mentions = [
        child.content
        for token in tokens
        for previous, child in zip([None, *(token.children or [])], token.children or [], strict=False)
        if child.type == "text" and "@" in child.content and (previous is None or previous.content != "<code>")
    ]
    assert not mentions


def test_settings_stand_in_a_table_with_what_to_type() -> None:
    advised = Recommendation(
        variable="NCCL_IB_HCA", action="set", value="=mlx5_0|1", why="two | rails", evidence=[], source="",
        basis="rule", gain="", risk="", valid_for="",
    )  # fmt: skip
    document = replace(stories.document("healthy"), recommendations=[advised])
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown.text(document))
    assert sum(token.type == "td_open" for token in tokens) == 3
    assert 'ncclcheck_recommendation{variable="NCCL_IB_HCA",action="set"} 1' in prometheus.text(document)
