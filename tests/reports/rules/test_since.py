"""The network after a job, beside what it was before it."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Burst,
    Cluster,
    Collective,
    Echoes,
    Interruptions,
    Job,
    Measurements,
    PairTime,
    Sent,
    replace,
)
from ncclcheck.probes.job.timing import summary
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.subjects.links import since
from tests.helpers.clusters import verdict
from tests.helpers.reach_clusters import DROPPED, Change, hosts, measured, pairs

_SLOW = Burst(bytes=56_000, seconds=0.15, segments=60, retransmits=20)  # 0.003 Gb/s
_HALF = Burst(bytes=5 * 10**8, seconds=0.15, segments=60, retransmits=0)


def _after(count: int, change: Change | None, running: float = 0.0) -> Measurements:
    nodes = hosts(count)
    before, after = measured(nodes).reach, measured(nodes, change).reach
    return Measurements(reach=before, reach_after=[replace(reach, running=running) for reach in after])


def _told(count: int, change: Change | None, running: float = 0.0) -> list[tuple[str, str | None, str]]:
    judgement = verdict("NET021", *hosts(count), command="bench", measurements=_after(count, change, running))
    return [(finding.state.value, finding.where.node, finding.what) for finding in judgement.findings]


@pytest.mark.parametrize("running", [0.0, 12.0])
@pytest.mark.parametrize(("way", "words"), [("out", "sends"), ("in", "receives"), ("both", "sends and receives")])
def test_a_link_that_became_slow_while_the_job_ran(way: str, words: str, running: float) -> None:
    ((state, node, what),) = _told(4, pairs(way, "h3", bursts=[_SLOW]), running)
    assert (state, node) == ("fail", "h3")
    assert what.startswith(f"eth0 {words} at most 0.003 Gb/s after the job")


def test_who_was_only_met_by_the_slow_one_is_not_named() -> None:
    """There was no time for all bursts: what h1 received came from h3 alone."""
    slow = pairs("out", "h3", bursts=[_SLOW])
    ((_, node, what),) = _told(3, lambda a, b: {"bursts": []} if (a, b) == ("h2", "h1") else slow(a, b))
    assert node == "h3"
    assert what.startswith("eth0 sends at most")


@pytest.mark.parametrize("running", [0.0, 12.0])
def test_what_is_no_change(running: float) -> None:
    for change in (None, pairs("out", "h3", bursts=[_HALF]), pairs("both", "h1", "h2", "h3", bursts=[_SLOW])):
        assert [state for state, *_ in _told(3, change, running)] == ["ok"]


def test_of_two_nodes_the_way_is_named() -> None:
    ((state, node, what),) = _told(2, pairs("out", "h2", bursts=[_SLOW]))
    assert (state, node) == ("fail", "h2")
    assert "from h2 to h1" in what


def test_who_loses_packets_only_since() -> None:
    lossy: dict[str, Any] = {"echoes": Echoes(sent=300, arrived=240, returned=240)}
    ((state, node, what),) = _told(4, pairs("in", "h3", **lossy))
    assert (state, node) == ("warn", "h3")
    assert "lost after the job" in what


def test_a_way_that_is_closed_is_left_to_net006() -> None:
    assert _told(3, pairs("both", "h3", connect=DROPPED, bursts=[])) == []


def test_without_a_second_look_nothing_is_judged() -> None:
    nodes = hosts(3)
    assert verdict("NET021", *nodes, command="bench", measurements=measured(nodes)).state is State.SKIPPED


@pytest.mark.parametrize(
    ("measurements", "doubtful"),
    [
        ({}, False),
        ({"collectives": [(2**20, 0.02)]}, False),
        ({"collectives": [(2**20, 4.8)]}, True),
        ({"collectives": [(2**30, 4.8)]}, False),
        ({"pairs": [(1.0, 0.5)]}, False),
        ({"pairs": [(1.0, 0.0004)]}, True),
        ({"sent": {"unanswered_s": 2.0, "outages": 2, "again": 4}}, True),
    ],
)
def test_when_a_second_look_is_worth_its_seconds(measurements: dict[str, Any], doubtful: bool) -> None:
    nodes = hosts(3)
    rows = [
        Collective(op="all_reduce", bytes=size, dtype="float32", nodes=3, ranks=3, iterations=3,
                   time_us=summary([seconds]))
        for size, seconds in measurements.get("collectives", ())
    ]  # fmt: skip
    times = [
        PairTime(a="h1", b="h3", bytes=2**20, a_to_b_gb_s=there, b_to_a_gb_s=back)
        for there, back in measurements.get("pairs", ())
    ]
    sent = Sent(source="10.1.0.1", target="10.1.0.3", segments=900, **measurements.get("sent", {}))
    signals = [Interruptions(node="h1", seconds=9.0, sent=[sent])]
    facts = replace(measured(nodes), collectives=rows, pairs=times, interruptions=signals)
    assert since.doubtful(Cluster(nodes=nodes, job=Job(nodes_asked=3), measurements=facts)) is doubtful
