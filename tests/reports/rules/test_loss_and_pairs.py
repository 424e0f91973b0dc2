"""Packets lost before the job are the cause of what its exchanges then find slow, and stand first."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from ncclcheck.probes.facts import Cluster, Echoes, Job, Measurements, PairTime, Run, replace
from ncclcheck.reports.culprit import culprits
from ncclcheck.reports.judgement.causal import causes_first
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.text import closing
from tests.helpers.clusters import node, verdict
from tests.helpers.reach_clusters import Change, hosts, measured

Speeds = Mapping[tuple[str, str], float]
_LOST = Echoes(sent=300, arrived=276, returned=276)


def _lossy(a: str, b: str) -> Change:
    return lambda x, y: {"echoes": _LOST} if (x, y) == (a, b) else {}


def _cluster(count: int, speeds: Speeds, change: Change | None = None, times: int = 6) -> Cluster:
    """All pairs carry 2 GB/s but for those named."""
    nodes = hosts(count)
    names = [node.name for node in nodes]
    pairs = [
        PairTime(
            a=a,
            b=b,
            bytes=1 << 24,
            a_to_b_gb_s=speeds.get((a, b), 2.0),
            b_to_a_gb_s=speeds.get((b, a), 2.0),
            latency_us=50.0,
        )
        for a, b in itertools.combinations(names, 2)
        for _ in range(times)
    ]
    job = Job(launcher="join", nodes_asked=count, nodes_answered=count, backend="gloo")
    return Cluster(
        command="bench", nodes=nodes, job=job, measurements=replace(measured(nodes, change), pairs=pairs)
    )


def _bad(cluster: Cluster) -> dict[str, Verdict]:
    verdicts = [entry for entry in judge(cluster) if entry.code in ("NET009", "BEN004")]
    return {entry.code: entry for entry in causes_first(verdicts) if entry.state in (State.FAIL, State.WARN)}


@pytest.mark.parametrize(
    ("count", "speeds"),
    [
        (2, {("h1", "h2"): 0.02}),
        (3, {("h1", "h2"): 0.02}),
        (3, {("h1", "h2"): 0.002, ("h1", "h3"): 0.2}),
        (5, {("h1", "h2"): 0.02}),
    ],
    ids=["two", "a link", "what suffers beside it", "five"],
)
def test_lost_packets_are_the_cause_of_a_slow_way(count: int, speeds: Speeds) -> None:
    cluster = _cluster(count, speeds, _lossy("h1", "h2"))
    bad = _bad(cluster)
    assert list(bad) == ["NET009", "BEN004"]
    assert bad["NET009"].state is State.FAIL
    (finding,) = bad["BEN004"].findings
    assert (finding.where.node, finding.where.peer) == ("h1", "h2")
    assert "because of NET009" in finding.what
    (culprit,) = culprits(cluster)
    assert (culprit.kind, culprit.names, culprit.explains) == ("link", ["h1", "h2"], ["NET009", "BEN004"])


def test_loss_that_no_exchange_shows_stays_a_warning() -> None:
    bad = _bad(_cluster(3, {}, _lossy("h1", "h2")))
    assert {code: entry.state for code, entry in bad.items()} == {"NET009": State.WARN}


def test_a_way_that_was_slow_once_makes_no_failure_of_loss() -> None:
    assert _bad(_cluster(3, {("h1", "h2"): 0.5}, _lossy("h1", "h2"), times=1))["NET009"].state is State.WARN


def test_a_node_that_is_slow_with_all_is_named_beside_another_lossy_way() -> None:
    slow = {("h5", name): 0.2 for name in ("h1", "h2", "h3", "h4")}
    bad = _bad(_cluster(5, {**slow, ("h1", "h2"): 0.02}, _lossy("h1", "h2")))
    assert {finding.where.node for finding in bad["BEN004"].findings} == {"h1", "h5"}


def test_without_loss_the_pairs_speak_for_themselves() -> None:
    bad = _bad(_cluster(3, {("h1", "h2"): 0.02}))
    assert list(bad) == ["BEN004"]
    assert "NET009" not in bad["BEN004"].findings[0].what


def test_the_last_line_names_the_way() -> None:
    cluster = _cluster(3, {("h1", "h2"): 0.02}, _lossy("h1", "h2"))
    document = Document(
        version="1", command="bench", state="fail", exit_code=1, started="", seconds=1.0, counts={}, job=Job(),
        stages=[], run=Run(), nodes=[], verdicts=judge(cluster), measurements=Measurements(),
    )  # fmt: skip
    assert "NET009 on the link h1 -> h2 first" in closing.decision(document)


@pytest.mark.parametrize(
    ("slow", "waited", "codes"),
    [(0.2, 0.0, ["fail"]), (0.2, 0.6, ["note"]), (0.05, 0.6, ["fail"])],
)
def test_without_cores_only_far_slower_is_named(slow: float, waited: float, codes: list[str]) -> None:
    """10 % of the others, as healthy hosts at a load of 29 on 2 cores."""
    rates = {pair: slow if "c" in pair else 2.0 for pair in itertools.combinations("abcd", 2)}
    times = [
        PairTime(a=a, b=b, bytes=2**22, round=n, a_to_b_gb_s=rate, b_to_a_gb_s=rate, waited=waited)
        for n in range(4)
        for (a, b), rate in rates.items()
    ]
    nodes = [node(name) for name in "abcd"]
    measured = Measurements(pairs=times)
    job = Job(nodes_asked=4, backend="gloo", ranks=4)
    judgement = verdict("BEN004", *nodes, command="bench", job=job, measurements=measured)
    findings = [finding for finding in judgement.findings if finding.state.value != "ok"]
    assert [finding.state.value for finding in findings] == codes
    assert all(finding.where.node == "c" for finding in findings)
    cluster = Cluster(command="bench", nodes=nodes, job=job, measurements=measured)
    assert [culprit.where[0].node for culprit in culprits(cluster)] == (["c"] if "fail" in codes else [])
