"""What held up the job for seconds and went by: a link, a host, or the network between them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Collective,
    Filter,
    Interruptions,
    Lateness,
    LinkEvents,
    Measurements,
    Moved,
    Resources,
    Sent,
    Traffic,
    replace,
)
from ncclcheck.probes.job.timing import summary
from ncclcheck.probes.job.usage import interruptions
from ncclcheck.reports.judgement.findings import Finding, State
from tests.helpers.clusters import LO, nic, node, verdict
from tests.helpers.trees import tree

SNMP = "Ip: Forwarding\nIp: 1\nTcp: RtoMin OutSegs RetransSegs\nTcp: 200 {} {}\n"


def row(op: str = "all_reduce", size: int = 2**20, times: tuple[float, ...] = (0.004,) * 20) -> Collective:
    return Collective(
        op=op, bytes=size, dtype="float32", nodes=2, ranks=2, iterations=len(times), time_us=summary(times)
    )


SOUND = [row(), row(size=2**24, times=(0.06,))]
STOOD = [*SOUND, row("barrier", 0, (0.001,) * 30 + (3.3,))]


def findings_of(rows: list[Collective], runqueue_s: float = 0.0, **of_b: Any) -> list[Finding]:
    """Of node b all that is given; a is sound."""
    nodes = [node(name, LO, nic("eth0", f"10.1.0.{i}/24")) for i, name in enumerate("ab", 1)]
    seen = [Interruptions(node=name, seconds=30, **{"paused_s": 0.0, "silent_s": 0.6, **more})
            for name, more in (("a", {}), ("b", of_b))]  # fmt: skip
    moved = [Moved(name="eth0", sent=10**9, received=10**9), Moved(name="eth1", sent=10**4, received=0),
             Moved(name="lo", sent=10**12, received=10**12)]  # fmt: skip
    late = Lateness(rank=0, node="a", iterations=9, last=1, late_us=summary([0.0]), wall_s=30, cpu_s=1,
                    runqueue_s=runqueue_s)  # fmt: skip
    measured = Measurements(
        collectives=rows, interruptions=seen, lateness=[late],
        traffic=[Traffic(node=name, seconds=30, interfaces=moved) for name in "ab"],
    )  # fmt: skip
    return verdict("BEN018", *nodes, command="bench", measurements=measured).findings


def test_a_sound_job() -> None:
    assert findings_of(SOUND) == []


@pytest.mark.parametrize("rows", [STOOD, SOUND])
def test_a_link_that_went_down(rows: list[Collective]) -> None:
    (finding,) = findings_of(rows, links=[LinkEvents(name="eth0", downs=2)], segments=10**5, retransmits=607)
    assert (finding.state, finding.where.node, finding.where.device) == (State.FAIL, "b", "eth0")
    assert "lost its link 2 times" in finding.what
    assert ("an iteration of barrier took 3.30 s, 1 ms are usual" in finding.what) == (rows is STOOD)
    assert "607 of 100000 TCP segments sent again" in {evidence.value for evidence in finding.evidence}


@pytest.mark.parametrize(
    ("step", "words"), [(7.0, "set ahead by 7.0 s"), (-3600.0, "set back by 3600.0 s"), (0.4, "")]
)
def test_a_clock_that_was_set(step: float, words: str) -> None:
    measured = Measurements(
        interruptions=[Interruptions(node="b", seconds=30)],
        resources=[Resources(node="b", seconds=30, clock_step_s=step)],
    )
    findings = verdict("BEN018", node("b", LO), command="bench", measurements=measured).findings
    assert [(finding.state, words in finding.what) for finding in findings] == (
        [(State.WARN, True)] if words else []
    )


def test_a_member_of_a_bond_that_went_down() -> None:
    bond = replace(nic("bond0", "10.1.0.1/24", kind="bond"), members=["eth0", "eth1"])
    seen = Interruptions(node="a", seconds=30, links=[LinkEvents(name="eth0", downs=1)])
    moved = [Moved(name=name, sent=10**9, received=10**9) for name in ("bond0", "eth0", "eth1")]
    measured = Measurements(interruptions=[seen], traffic=[Traffic(node="a", seconds=30, interfaces=moved)])
    judged = verdict("BEN018", node("a", LO, bond), command="bench", measurements=measured)
    assert judged.state is State.WARN


@pytest.mark.parametrize("name", ["eth1", "veth12ab"])
def test_a_link_that_the_job_did_not_use(name: str) -> None:
    (finding,) = findings_of(SOUND, links=[LinkEvents(name=name, downs=1)])
    assert finding.state is State.NOTE


@pytest.mark.parametrize(("paused_s", "states"), [(7.9, [State.WARN]), (0.4, []), (None, [])])
def test_a_host_that_stood_still(paused_s: float | None, states: list[State]) -> None:
    findings = findings_of(SOUND, paused_s=paused_s)
    assert [finding.state for finding in findings] == states
    assert [finding.where.node for finding in findings] == ["b"] * len(states)


@pytest.mark.parametrize(
    ("rows", "facts", "state", "where"),
    [
        (STOOD, {}, State.WARN, None),
        (STOOD, {"silent_s": 3.1}, State.WARN, "b"),
        (STOOD, {"runqueue_s": 4.0}, State.NOTE, None),
        (STOOD, {"starved_s": 2.0}, State.NOTE, None),
        ([row(times=(0.2,) * 20 + (2.9,))], {}, State.NOTE, None),  # only 14 times the usual
        ([row(), row(size=2**24, times=(1.61,))], {}, State.NOTE, None),  # 64 ms by the smaller size
    ],
)
def test_an_iteration_that_nothing_explains(
    rows: list[Collective], facts: dict[str, Any], state: State, where: str | None
) -> None:
    (finding,) = findings_of(rows, **facts)
    assert (finding.state, finding.where.node) == (state, where)


def test_older_files_hold_none() -> None:
    assert verdict("BEN018", node("a"), command="bench", measurements=Measurements(collectives=STOOD)).reason


def test_links_and_segments_are_read(tmp_path: Path) -> None:
    files = {
        "/sys/class/net/eth0/carrier_down_count": "3\n",
        "/sys/class/net/eth1/carrier_down_count": "1\n",
        "/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed": "7\n",
        "/proc/net/snmp": SNMP.format(1000, 5),
    }
    watch = interruptions.InterruptionWatch(tree(tmp_path, files))
    files |= {
        "/sys/class/net/eth0/carrier_down_count": "5\n",
        "/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed": "8\n",
        "/proc/net/snmp": SNMP.format(1900, 25),
    }
    tree(tmp_path, files)
    seen = watch.seen("a")
    assert seen.links == [LinkEvents(name="eth0", downs=2), LinkEvents(name="mlx5_0:1", downs=1)]
    assert (seen.segments, seen.retransmits) == (900, 20)


def test_lateness_is_parted(tmp_path: Path) -> None:
    """A thread that wakes up 8 s late, of which it waited 3 s for a core."""
    over, clock, waits = threading.Event(), iter([1.0, 9.2]), iter([0.0, 3.0])

    def now() -> float:
        if (read := next(clock, None)) is None:
            over.set()
        return read or 0.0

    watch = interruptions.InterruptionWatch(tree(tmp_path, {}), now, lambda: next(waits, 3.0))
    assert over.wait(20)
    seen = watch.seen("a")
    assert (seen.paused_s, seen.starved_s) == (5.0, 3.0)


_ADDRESSES = {"a": "10.1.0.1", "b": "10.1.0.2", "c": "10.1.0.3", "d": "10.1.0.4"}


def _of_connections(
    bad: dict[tuple[str, str], dict[str, Any]],
    names: str = "abcd",
    filters: dict[str, list[Filter]] | None = None,
    **more: Any,
) -> list[Finding]:
    """All pairs of the nodes are connected, and fare well but for these."""
    nodes = [node(name, LO, nic("eth0", f"{_ADDRESSES[name]}/24")) for name in names]
    nodes = [
        replace(each, network=replace(each.network, filters=(filters or {}).get(each.name, []))) for each in nodes
    ]
    seen = [
        Interruptions(node=a, seconds=30, sent=[
            Sent(source=_ADDRESSES[a], target=_ADDRESSES[b], **{"segments": 5000, **bad.get((a, b), {})})
            for b in names if b != a
        ])
        for a in names
    ]  # fmt: skip
    measured = Measurements(interruptions=seen, **more)
    return verdict("BEN018", *nodes, command="bench", measurements=measured).findings


_CUT: dict[str, Any] = {"unanswered_s": 1.2, "outages": 3, "again": 5}


def test_the_node_that_all_silent_pairs_have_in_common_is_named() -> None:
    (finding,) = _of_connections({("a", "c"): _CUT, ("b", "c"): _CUT, ("c", "d"): _CUT})
    assert (finding.state, finding.where.node, finding.where.device) == (State.WARN, "c", "eth0")
    assert "went silent while the job ran" in finding.what
    assert "with a, b, d (3 times, 1.2 s in all)" in finding.what


def test_two_nodes_are_named_together_and_all_as_none() -> None:
    (finding,) = _of_connections({("a", "c"): _CUT, ("c", "a"): _CUT})
    assert (finding.where.node, finding.where.peer) == ("a", "c")
    (finding,) = _of_connections({(a, b): _CUT for a in "abcd" for b in "abcd" if a != b})
    assert finding.where.node is None
    assert finding.what.startswith("between most nodes")
    (finding,) = _of_connections({("a", "b"): _CUT}, "ab")
    assert (finding.where.node, finding.where.peer) == ("a", "b")


def test_a_short_outage_of_one_pair_is_none() -> None:
    assert _of_connections({("a", "c"): {"unanswered_s": 0.6, "outages": 1, "again": 2}}) == []
    assert _of_connections({("a", "c"): {"again": 60}, ("b", "c"): {"again": 60}}) == []


def test_who_loses_packets_in_the_job_alone() -> None:
    lossy = {"again": 400}
    (finding,) = _of_connections({("a", "c"): lossy, ("b", "c"): lossy, ("d", "c"): lossy})
    assert (finding.state, finding.where.node) == (State.WARN, "c")
    assert "segments of the job's connections to c were lost" in finding.what


def test_a_filter_of_the_node_that_drops_above_a_rate_is_why() -> None:
    rule = "meta l4proto tcp limit rate over 2 mbytes/second drop"
    police = Filter(
        family="netdev", table="police", chain="in", hook="ingress", does=["drop"], rule=rule, part=rule
    )  # fmt: skip
    bad = {(name, "c"): {"again": 400} for name in "abd"}
    (finding,) = _of_connections(bad, filters={"c": [police]})
    assert (finding.state, finding.where.node) == (State.FAIL, "c")
    assert finding.what.startswith("c itself stops a part of what it takes in by a rule of its own packet filter")
    assert "limit rate over 2 mbytes/second drop" in finding.what


def test_a_host_that_stood_still_explains_its_silence() -> None:
    bad: dict[tuple[str, str], dict[str, Any]] = {("a", "c"): _CUT, ("b", "c"): _CUT, ("d", "c"): _CUT}
    nodes = [node(name, LO, nic("eth0", f"{_ADDRESSES[name]}/24")) for name in "abcd"]
    seen = [
        Interruptions(
            node=a, seconds=30, paused_s=8.0 if a == "c" else 0.0,
            sent=[Sent(source=_ADDRESSES[a], target=_ADDRESSES[b], segments=9, **bad.get((a, b), {}))
                  for b in "abcd" if b != a],
        )
        for a in "abcd"
    ]  # fmt: skip
    findings = verdict("BEN018", *nodes, command="bench", measurements=Measurements(interruptions=seen)).findings
    assert ["stood still" in finding.what for finding in findings] == [True]
