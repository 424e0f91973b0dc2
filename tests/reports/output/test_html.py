"""The page as a parser reads it: what stands where, that what comes from outside is only text, how large it is."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import Unread, replace
from ncclcheck.reports.judgement.findings import Finding, State, Where, fail, seen, you
from ncclcheck.reports.judgement.jsondoc import Document, Recommendation
from ncclcheck.reports.output import html
from ncclcheck.reports.output.html import facts
from ncclcheck.reports.output.html.limits import LIMITS, MOST_BYTES
from ncclcheck.reports.output.html.page import render
from ncclcheck.reports.output.html.sections import figures
from ncclcheck.reports.text import closing
from tests.helpers import stories
from tests.helpers.large_result import large

STORIES = stories.NAMES[:: max(1, len(stories.NAMES) // 12)]
_VOID = {"meta", "link", "br"}
_ADDRESSES = {"href", "src", "action", "data", "poster", "srcset", "formaction"}
NASTY = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><script>alert(1)</script>",
    "]]></svg><script>alert(1)</script>",
    "javascript:alert(1)",
    "--><script>alert(1)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "$x^{2$ \\frac{",
    "\u202egnp.exe",
    "\x00\x1b[31m",
    "https://example.com/x.js",
    "url(https://example.com)",
    "@import 'x'",
)


class Page(HTMLParser):
    """Its tags, ids, addresses and text; complains of what is closed in another order than it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: Counter[str] = Counter()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.labels: list[str] = []
        self.text = ""
        self.styles = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            self.attributes[name] += 1
            if name == "id":
                self.ids.append(value or "")
            if name in _ADDRESSES or name.endswith(":href"):
                self.addresses.append(value or "")
            if name == "aria-label":
                self.labels.append(value or "")
            if name == "style":
                self.styles += f"{value}\n"

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.styles += data
        else:
            self.text += data


@cache
def _written(name: str) -> str:
    return html.text(stories.document(name))


@cache
def _huge() -> str:
    return html.text(large(1000))


def _spaces(words: str) -> str:
    return " ".join(words.split())


@pytest.mark.parametrize("name", STORIES)
def test_the_decision_and_every_failure_are_there(name: str) -> None:
    document, page = stories.document(name), Page(_written(name))
    text = _spaces(page.text)
    assert text.index(_spaces(closing.decision(document))[:300]) < 1000
    for verdict in document.verdicts:
        if verdict.state in (State.FAIL, State.WARN):
            assert any(anchor.startswith(f"{verdict.state.value}-{verdict.code}") for anchor in page.ids)
            assert all(_spaces(finding.why)[:60] in text for finding in verdict.findings if finding.why)
    assert not [anchor for anchor, times in Counter(page.ids).items() if times > 1 and "-" not in anchor]


@pytest.mark.parametrize("name", STORIES)
def test_nothing_is_fetched(name: str) -> None:
    page = Page(_written(name))
    assert all(address.startswith("#") or address == "data:," for address in page.addresses)
    assert not re.search(r"@import|url\((?!#)", page.styles)
    assert page.tags["script"] == 1
    assert (
        not page.tags["iframe"] + page.tags["object"] + page.tags["embed"] + page.tags["img"] + page.tags["image"]
    )


def test_the_first_thing_to_do_comes_before_the_findings() -> None:
    page = Page(_written("one-node-in-another-subnet"))
    assert page.ids.index("decision") < page.ids.index("first") < page.ids.index("findings")
    assert "#fail-NET003" in page.addresses
    assert "fail-NET003" in page.ids


@pytest.mark.parametrize(
    ("story", "key"),
    [
        ("healthy", "curve1"),
        ("four-nodes-that-are-alike", "pairs"),
        ("training-that-is-sound", "steps"),
        ("a-loader-that-feeds-its-gpus", "dataset"),
        ("job-one-rank-holds-most", "memory"),
    ],
)
def test_what_was_measured_is_drawn_and_told(story: str, key: str) -> None:
    drawn = {figure.key: figure for figure in figures(stories.document(story))}
    page = Page(_written(story))
    assert key in page.ids
    assert page.tags["svg"] == len(drawn)
    assert drawn[key].description in page.labels
    assert all(row[0] in page.text for row in drawn[key].table.rows)


def test_where_nothing_was_measured_nothing_is_drawn() -> None:
    assert Page(_written("a-node-never-answers")).tags["svg"] == 0


def test_colours_are_the_pages_own_in_dark_and_in_light() -> None:
    text = _written("training-that-is-sound")
    assert "#0102" not in text
    used = {*re.findall(r"var\((--[a-z0-9]+)\)", text)}
    light, _, rest = text.partition("@media screen and (prefers-color-scheme: dark)")
    dark = rest.partition("* {")[0]
    assert {"--ink", "--line", "--s0", "--s6"} <= used
    assert all(f"{name}:" in light and f"{name}:" in dark for name in used)
    assert "@media print" in rest


def test_pictures_are_the_same_every_time() -> None:
    document = stories.document("job-one-rank-holds-most")
    assert html.text(document) == html.text(document)


def _advised(words: str) -> Recommendation:
    return Recommendation(
        variable="NCCL_IB_HCA", action="set", value=words, why=words, evidence=[words], source=words, basis="rule",
        gain=words, risk=words, valid_for=words, set_in=[words], undo=words, disagree=words,
    )  # fmt: skip


def _finding(words: str) -> Finding:
    where = Where(node=words, device=words, rank=1, peer=words)
    return fail(
        where, words, why=words or "why", owner="node", evidence=[seen(words, words)], fix=[you(words, words)]
    )


def _hostile(words: str) -> Document:
    """These words wherever something from outside may stand."""
    document = large(4, name=f"{words.replace('{', '{{').replace('}', '}}')}{{}}")
    verdict = replace(document.verdicts[0], reason=words, findings=[_finding(words)])
    node = document.nodes[0]
    spoiled = replace(node.facts, host=replace(node.facts.host, system=words, kernel=Unread("broken", words)))
    return replace(
        document,
        verdicts=[verdict, *document.verdicts[1:]],
        nodes=[replace(node, facts=spoiled), *document.nodes[1:]],
        recommendations=[_advised(words)],
        started=words,
        version=words,
        job=replace(document.job, chosen_by=words, missing=[words], injected=[words]),
    )


def _is_only_text(text: str, plain: str) -> None:
    page, usual = Page(text), Page(plain)
    for tag in ("script", "style", "img", "svg", "iframe", "link", "meta", "form", "base"):
        assert page.tags[tag] == usual.tags[tag]
    assert {*page.attributes} == {*usual.attributes}
    assert all(address.startswith("#") or address == "data:," for address in page.addresses)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)


def test_what_is_hostile_is_shown_as_it_stands() -> None:
    text = html.text(_hostile(" ".join(NASTY)))
    _is_only_text(text, html.text(_hostile("word")))
    assert Page(text).text.count("<script>alert(1)</script>") > 20


@settings(deadline=None, max_examples=15)
@given(words=st.text(max_size=80) | st.sampled_from(NASTY))
def test_no_word_becomes_more_than_text(words: str) -> None:
    whole, plain = (render(_hostile(text), [], LIMITS[0]) for text in (words, "word"))
    _is_only_text(whole, plain)


def test_a_thousand_nodes_fit_a_page() -> None:
    text = _huge()
    assert len(text.encode()) < MOST_BYTES / 2
    page = Page(text)
    assert {"pairs", "steps", "memory", "dataset", "curve0"} <= {*page.ids}
    assert "gpu-0999" in page.text
    assert page.text.count("and 330 more like these: gpu-[") == 2, "three owners, a block each"


def test_of_many_nodes_the_map_shows_the_worst_and_every_node_has_a_row() -> None:
    drawn = {figure.key: figure for figure in figures(large(200))}
    map_of_pairs = drawn["pairs"]
    assert "a cell is the worst of 4 x 4 nodes" in map_of_pairs.description
    assert "5 GB/s from gpu-0007" in map_of_pairs.description
    assert [row[0] for row in map_of_pairs.table.rows[:3]] == ["gpu-0000", "gpu-0001", "gpu-0007"]
    assert len(map_of_pairs.table.rows) == 200


def test_a_disaster_of_any_size_stays_below_the_limit() -> None:
    document = stories.document("healthy")
    many = [_finding(f"{number} " + "<>&" * 3000) for number in range(1000)]
    verdicts = [replace(verdict, state=State.FAIL, findings=many[:200]) for verdict in document.verdicts[:40]]
    text = html.text(replace(document, verdicts=verdicts))
    assert len(text.encode()) <= MOST_BYTES
    assert "more findings: FAIL" in Page(text).text


def test_facts_that_all_nodes_share_are_said_once_and_rare_ones_first() -> None:
    nodes = [entry.facts for entry in large(60).nodes]
    nodes[7] = replace(nodes[7], host=replace(nodes[7].host, system="an old system"))
    lines, left = facts.folded(nodes, 100_000)
    by_value = {(line.path, line.value): line.nodes for line in lines}
    assert by_value["host.system", "an old system"] == "gpu-0007"
    assert by_value["host.system", nodes[0].host.system] == "gpu-[0000-0006,0008-0059]"  # type: ignore[union-attr,index]
    assert by_value["stack.python", nodes[0].stack.python] == ""  # type: ignore[union-attr,index]
    assert any(line.path == "host.memory" and line.value.startswith("60 different values") for line in lines)
    assert left == 0
    assert facts.folded(nodes, 5)[1] == len(lines) - 5
