"""NET018: nodes that are far away, and what is slow because of it."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import Burst, Counters, Measurements, NodeReach, replace
from tests.helpers.clusters import states_of
from tests.helpers.reach_clusters import Change, codes_told, hosts, judged, measured

FAR = Burst(bytes=2_000_000, seconds=0.15, segments=1400, retransmits=0)


def _far(*names: str, ms: float = 24.0, **more: Any) -> Change:
    return lambda a, b: {"rtt_us": ms * 1000, **more} if {a, b} & {*names} else {}


def test_a_node_that_is_far_away_is_named_once_and_its_slow_bursts_follow() -> None:
    (finding,) = judged("NET018", hosts(3), _far("h3", bursts=[FAR])).findings
    assert (finding.state.value, finding.where.node) == ("fail", "h3")
    assert "24 ms at best, between other nodes 0.08 ms (median): latency" in finding.what
    assert codes_told(hosts(3), _far("h3", bursts=[FAR])) == {("NET018", "fail", "h3")}


def test_of_two_nodes_neither_is_named() -> None:
    (finding,) = judged("NET018", hosts(2), _far("h2")).findings
    assert (finding.state.value, finding.where.node, finding.where.peer) == ("fail", "h1", "h2")


def test_one_far_pair_is_a_link() -> None:
    def change(a: str, b: str) -> dict[str, Any]:
        return {"rtt_us": 24_000.0} if {a, b} == {"h1", "h2"} else {}

    (finding,) = judged("NET018", hosts(4), change).findings
    assert (finding.state.value, finding.where.node, finding.where.peer) == ("warn", "h1", "h2")


def _busy(count: int, change: Change) -> Measurements:
    """The same where 12 threads could run for each core."""
    of_all = measured(hosts(count), change)
    return replace(of_all, reach=[replace(reach, running=12.0) for reach in of_all.reach])


@pytest.mark.parametrize(
    ("count", "names", "ms", "expected"),
    [
        (4, ("h1", "h2"), 6.8, []),  # as of one pair of healthy hosts at a load of 29
        (4, ("h1", "h2"), 80.0, [("warn", "h1")]),
        (4, ("h3",), 24.0, [("warn", "h3")]),
    ],
)
def test_without_cores_one_pair_is_no_distance(
    count: int, names: tuple[str, ...], ms: float, expected: Any
) -> None:
    def change(a: str, b: str) -> dict[str, Any]:
        far = {a, b} == {*names} if len(names) > 1 else names[0] in (a, b)
        return {"rtt_us": ms * 1000} if far else {}

    verdict = judged("NET018", hosts(count), measurements=_busy(count, change))
    assert [pair for pair in states_of(verdict) if pair[0] != "ok"] == expected


def test_without_cores_what_varies_between_pairs_is_no_distance() -> None:
    ms = {("h1", "h3"): 6.0, ("h3", "h1"): 7.0, ("h2", "h3"): 14.0, ("h3", "h2"): 9.0, ("h3", "h4"): 5.5}
    change = lambda a, b: {"rtt_us": 1000 * ms.get((a, b), 6.0)} if "h3" in (a, b) else {}  # noqa: E731
    assert judged("NET018", hosts(4), measurements=_busy(4, change)).state.value == "ok"
    assert states_of(judged("NET018", hosts(4), change)) == [("warn", "h3")]


@pytest.mark.parametrize(("running", "state"), [(0.0, "warn"), (12.0, "note")])
def test_without_cores_a_slow_burst_is_a_note(running: float, state: str) -> None:
    """1.8 against 5 Gb/s, as of healthy hosts at a load of 28."""
    fast, slow = (
        Burst(bytes=size, seconds=0.15, segments=900, retransmits=0) for size in (96_000_000, 34_000_000)
    )
    of_all = measured(hosts(3), lambda _, b: {"bursts": [slow if b == "h1" else fast]})
    of_all = replace(of_all, reach=[replace(reach, running=running) for reach in of_all.reach])
    assert [pair[0] for pair in states_of(judged("NET008", hosts(3), measurements=of_all)) if pair[0] != "ok"] == [
        state
    ]


def _filled(ms_back: float, gbit: float) -> NodeReach:
    """h3 behind 24 ms (`ms_back` from it), and what it sent to others before the bursts."""

    def change(a: str, b: str) -> dict[str, Any]:
        ms = ms_back if a == "h3" else 24.0
        return {"rtt_us": ms * 1000, "bursts": [FAR]} if "h3" in (a, b) else {}

    told_of = {reach.node: reach for reach in measured(hosts(3), change).reach}
    sent = Counters(packets=9, errors=0, drops=0, bytes_out=int(gbit * 1e9 / 8), seconds=1.0)
    return replace(told_of["h3"], beside=sent)


@pytest.mark.parametrize(
    ("ms_back", "gbit", "code"),
    [
        (22.0, 0.29, "NET008"),
        (24.0, 0.29, "NET018"),  # round trips of one length are a distance
        (22.0, 0.01, "NET018"),  # nobody else sends much
    ],
)
def test_a_queue_of_other_traffic_is_a_full_link_and_no_distance(ms_back: float, gbit: float, code: str) -> None:
    told_of = measured(hosts(3), _far("h3", bursts=[FAR]), h3=_filled(ms_back, gbit))
    far = judged("NET018", hosts(3), measurements=told_of)
    assert (far.state.value == "fail") == (code == "NET018")
    if code == "NET008":
        slow = judged("NET008", hosts(3), measurements=told_of)
        assert {(finding.state.value, finding.where.node) for finding in slow.findings} == {("fail", "h3")}
        assert all(
            "sends 0.29 Gb/s over eth0 for others than this job" in finding.what for finding in slow.findings
        )


@pytest.mark.parametrize(
    "change",
    [
        None,
        _far("h3", ms=4.0),  # a busy host
        _far("h1", "h2", "h3", ms=6.0),  # all of them: a slow machine of tests, or one network
    ],
)
def test_what_is_not_far(change: Change | None) -> None:
    assert states_of(judged("NET018", hosts(3), change))[0][0] == "ok"
