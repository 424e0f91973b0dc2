"""Clusters whose nodes have measured each other: all well, but for what a test changes in a pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ncclcheck.probes.facts import (
    Address,
    Burst,
    ClockOffset,
    Cluster,
    Connect,
    Counters,
    Echoes,
    Interface,
    Job,
    Measurements,
    Network,
    Node,
    NodeReach,
    PathMtu,
    PeerReach,
    Resolution,
    Unread,
    replace,
)
from ncclcheck.reports.judgement.findings import Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.helpers.clusters import LO, nic, node, verdict

Change = Callable[[str, str], dict[str, Any]]
CODES = (
    "HST009",
    "NET001",
    "NET003",
    "NET004",
    "NET006",
    "NET007",
    "NET008",
    "NET009",
    "NET010",
    "NET013",
    "NET018",
)
GOOD = Connect(outcome="ok")
DROPPED = Connect(outcome="timed_out", detail="no answer")
FAST = Burst(bytes=10**9, seconds=0.15, segments=700_000, retransmits=50)
SLOW = Burst(bytes=1_800_000, seconds=0.15, segments=1300, retransmits=60)
STALLED = Burst(bytes=0, seconds=0.15, segments=3, retransmits=2)


def hosts(count: int, **changes: Interface) -> list[Node]:
    """h1, h2, ... at 10.1.0.1, .2, ...; an interface given by the host's name takes the place of its eth0."""
    return [node(f"h{i}", LO, changes.get(f"h{i}", nic("eth0", f"10.1.0.{i}/24"))) for i in range(1, count + 1)]


def _address(member: Node) -> str:
    assert isinstance(member.network, Network)
    assert isinstance(member.network.interfaces, list)
    addresses = member.network.interfaces[1].addresses
    assert isinstance(addresses, list)
    assert isinstance(addresses[0], Address)
    return addresses[0].address


def measured(nodes: list[Node], change: Change | None = None, **of_node: NodeReach) -> Measurements:
    """A healthy measurement of all pairs; `change(a, b)` says what differs in a pair."""
    reach = []
    for member in nodes:
        peers = []
        for other in nodes:
            if other is member:
                continue
            healthy = PeerReach(
                peer=other.name,
                address=_address(other),
                connect=GOOD,
                rtt_us=80.0,
                clock=ClockOffset(seconds=1e-5, within_s=1e-4),
                echoes=Echoes(sent=300, arrived=300, returned=300),
                path_mtu=PathMtu(sent=1500, arrived=1500),
                source=_address(member),
                interface="eth0",
                resolved=Resolution(name=other.name, addresses=[_address(other)]),
                bursts=[FAST],
            )
            peers.append(replace(healthy, **(change(member.name, other.name) if change else {})))
        of_one = NodeReach(
            node=member.name,
            interface="eth0",
            address=_address(member),
            mtu=1500,
            peers=peers,
            counters=Counters(packets=20000, errors=0, drops=0),
        )
        reach.append(of_node.get(member.name) or of_one)
    return Measurements(reach=reach)


def judged(code: str, nodes: list[Node], change: Change | None = None, **facts: Any) -> Verdict:
    return verdict(code, *nodes, **{"measurements": measured(nodes, change), **facts})


def codes_told(nodes: list[Node], change: Change | None = None) -> set[tuple[str, str, str | None]]:
    """Code, state and node of all that is not well, of all rules that look at several nodes' network."""
    cluster = Cluster(nodes=nodes, job=Job(nodes_asked=len(nodes)), measurements=measured(nodes, change))
    return {
        (outcome.code, finding.state.value, finding.where.node)
        for outcome in judge(cluster, [rule for rule in all_rules() if rule.code in CODES])
        for finding in outcome.findings
        if finding.state.value not in ("ok", "note")
    }


def pairs(way: str, *nodes: str, **facts: Any) -> Change:
    """These facts in pairs that come in to the nodes, go out of them, or both."""

    def change(a: str, b: str) -> dict[str, Any]:
        hit = (way != "out" and b in nodes) or (way != "in" and a in nodes)
        return facts if hit else {}

    return change


NO_UDP = Echoes(sent=300, arrived=0, returned=0)
CUT = {
    "connect": DROPPED,
    "echoes": NO_UDP,
    "path_mtu": PathMtu(sent=1500, arrived=0),
    "bursts": [],
    "clock": Unread("absent", "no connection"),
}
