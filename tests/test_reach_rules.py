"""Rules about what nodes see of each other: one fault, one finding, the right node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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
    Library,
    Measurements,
    Nccl,
    Network,
    Node,
    NodeReach,
    PathMtu,
    PeerReach,
    Policy,
    Resolution,
    Unread,
    replace,
)
from ncclcheck.reports.findings import Verdict
from ncclcheck.reports.judge import judge
from ncclcheck.reports.reached import blame, groups
from ncclcheck.reports.rule import all_rules
from tests.clusters import LO, nic, node, route, told, verdict

Change = Callable[[str, str], dict[str, Any]]
CODES = ("HST009", "NET001", "NET003", "NET004", "NET006", "NET007", "NET008", "NET009", "NET010", "NET013")
GOOD = Connect(outcome="ok")
DROPPED = Connect(outcome="timed_out", detail="no answer")
FAST = Burst(bytes=10**9, seconds=0.15, segments=700_000, retransmits=50)
SLOW = Burst(bytes=1_800_000, seconds=0.15, segments=1300, retransmits=60)
STALLED = Burst(bytes=0, seconds=0.15, segments=3, retransmits=2)


def hosts(count: int, **changes: Interface) -> list[Node]:
    """h1, h2, ... at 10.1.0.1, .2, ...; an interface given by the host's name takes the place of its eth0."""
    return [node(f"h{i}", LO, changes.get(f"h{i}", nic("eth0", f"10.1.0.{i}/24"))) for i in range(1, count + 1)]


def _address(one: Node) -> str:
    assert isinstance(one.network, Network)
    assert isinstance(one.network.interfaces, list)
    addresses = one.network.interfaces[1].addresses
    assert isinstance(addresses, list)
    assert isinstance(addresses[0], Address)
    return addresses[0].address


def measured(nodes: list[Node], change: Change | None = None, **of_node: NodeReach) -> Measurements:
    """A healthy measurement of all pairs; `change(a, b)` says what differs in a pair."""
    reach = []
    for one in nodes:
        peers = []
        for other in nodes:
            if other is one:
                continue
            healthy = PeerReach(
                peer=other.name,
                address=_address(other),
                connect=GOOD,
                rtt_us=80.0,
                clock=ClockOffset(seconds=1e-5, within_s=1e-4),
                echoes=Echoes(sent=300, arrived=300, returned=300),
                path_mtu=PathMtu(sent=1500, arrived=1500),
                source=_address(one),
                interface="eth0",
                resolved=Resolution(name=other.name, addresses=[_address(other)]),
                bursts=[FAST],
            )
            peers.append(replace(healthy, **(change(one.name, other.name) if change else {})))
        of_one = NodeReach(
            node=one.name,
            interface="eth0",
            address=_address(one),
            mtu=1500,
            peers=peers,
            counters=Counters(packets=20000, errors=0, drops=0),
        )
        reach.append(of_node.get(one.name) or of_one)
    return Measurements(reach=reach)


def judged(code: str, nodes: list[Node], change: Change | None = None, **facts: Any) -> Verdict:
    return verdict(code, *nodes, **{"measurements": measured(nodes, change), **facts})


def codes_told(nodes: list[Node], change: Change | None = None) -> set[tuple[str, str, str | None]]:
    """Code, state and node of all that is not well, of all rules that look at several nodes' network."""
    cluster = Cluster(nodes=nodes, job=Job(nodes_asked=len(nodes)), measurements=measured(nodes, change))
    return {
        (one.code, finding.state.value, finding.where.node)
        for one in judge(cluster, [rule for rule in all_rules() if rule.code in CODES])
        for finding in one.findings
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


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_healthy_nodes_are_well(count: int) -> None:
    assert codes_told(hosts(count)) == set()
    for code in CODES:
        assert judged(code, hosts(count)).state.value == "ok"


@pytest.mark.parametrize(
    ("count", "change", "expected", "says"),
    [
        (4, pairs("both", "h3", **CUT), [("fail", "h3")], "h3 is cut off from all 3 others"),
        (4, pairs("in", "h3", connect=DROPPED), [("fail", "h3")], "incoming connections to h3 do not pass"),
        (4, pairs("out", "h3", connect=DROPPED), [("fail", "h3")], "outgoing connections from h3 do not pass"),
        (3, pairs("in", "h3", connect=DROPPED), [("fail", "h3")], "a packet filter drops it, not a cable"),
        (3, pairs("both", "h1", "h2", "h3", **CUT), [("fail", None)], "no node reaches any other"),
        (2, pairs("both", "h1", **CUT), [("fail", "h1")], "h1 and h2 cannot connect to each other"),
        (2, pairs("in", "h2", connect=DROPPED), [("fail", "h2")], "look first at what comes in to h2"),
        (
            4,
            lambda a, b: CUT if (a, b) == ("h1", "h2") else {},
            [("fail", "h2")],
            "h1 cannot connect to h2, though",
        ),
        (
            5,
            lambda a, b: CUT if (a > "h2") != (b > "h2") else {},
            [("fail", "h1")],
            "h[1-2] reach each other, but",
        ),
        (4, lambda a, b: CUT if (a > "h2") != (b > "h2") else {}, [("fail", None)], "h[1-2]; h[3-4]"),
    ],
)
def test_who_is_cut_off(count: int, change: Change, expected: list[tuple[str, str]], says: str) -> None:
    found = judged("NET006", hosts(count), change)
    assert told(found) == expected
    assert says in found.findings[0].what


def test_a_node_whose_link_is_down_is_named_with_its_link() -> None:
    nodes = hosts(4, h3=nic("eth0", "10.1.0.3/24", running=False))
    old = Nccl(loaded=Library(path="/x", origin="torch", version="2.27.7"))
    nodes = [replace(one, nccl=old) for one in nodes]  # this one takes an interface without a link
    assert (
        "its eth0 is up, but has no link" in judged("NET006", nodes, pairs("both", "h3", **CUT)).findings[0].what
    )
    assert codes_told(nodes, pairs("both", "h3", **CUT)) == {("NET001", "fail", "h3")}


def test_a_node_with_a_cause_of_its_own_is_no_firewall() -> None:
    nodes = hosts(4, h3=nic("eth0", "10.2.0.3/24"))
    assert codes_told(nodes, pairs("both", "h3", **CUT)) == {("NET003", "fail", "h3")}


def test_two_nodes_with_one_address_are_only_that() -> None:
    nodes = hosts(4, h3=nic("eth0", "10.1.0.2/24"))
    refused = Connect(outcome="refused", detail="Connection refused")
    wrong = {**CUT, "connect": refused}
    assert codes_told(nodes, pairs("both", "h2", "h3", **wrong)) == {("NET010", "fail", "h2")}
    pair = hosts(2, h2=nic("eth0", "10.1.0.1/24"))
    assert judged("NET006", pair, pairs("both", "h1", **wrong)).reason == "its ground failed: NET010"


def test_a_listener_that_did_not_speak_is_unknown() -> None:
    silent = pairs("both", "h2", connect=Connect(outcome="silent", detail="accepted, then no answer"))
    assert told(judged("NET006", hosts(2), silent))[0] == ("unknown", "h1")


@pytest.mark.parametrize(("passes", "state"), [(True, "ok"), (False, "fail")])
def test_a_connection_proves_what_no_route_tells(passes: bool, state: str) -> None:
    nodes = hosts(3, h3=nic("eth0", "10.2.0.3/24"))
    change = None if passes else pairs("both", "h3", **CUT)
    assert judged("NET003", nodes, change).state.value == state


@pytest.mark.parametrize(("passes", "state"), [(True, "ok"), (False, "note")])
def test_routed_subnets_are_well_once_proved(passes: bool, state: str) -> None:
    gateway = [route("0.0.0.0/0", "eth0", "10.0.0.254")]
    nodes = [node(f"h{i}", LO, nic("eth0", f"10.{i}.0.1/24"), routes=gateway) for i in (1, 2)]
    assert judged("NET003", nodes, None if passes else pairs("both", "h1", **CUT)).state.value == state


def test_a_detour_that_leads_nowhere_fails() -> None:
    astray = [route("0.0.0.0/0", "mgmt0", "192.168.0.1")]
    nodes = [*hosts(2), node("h3", LO, nic("eth0", "10.2.0.3/24"), routes=astray)]
    assert ("fail", "h3") in told(judged("NET003", nodes, pairs("both", "h3", **CUT)))


@pytest.mark.parametrize(("prefix", "state"), [(16, "warn"), (28, "fail"), (24, "ok")])
def test_wrong_prefix_length(prefix: int, state: str) -> None:
    nodes = [*hosts(3), node("h4", LO, nic("eth0", f"10.1.0.100/{prefix}"))]
    broken = pairs("both", "h4", **CUT) if state == "fail" else None
    found = judged("NET003", nodes, broken)
    assert (found.state.value, found.findings[0].where.node) == (state, "h4" if state != "ok" else None)
    assert state == "ok" or f"has the prefix length /{prefix}" in found.findings[0].what


def test_a_link_that_is_down_explains_the_other_interface() -> None:
    mgmt = [nic("mgmt0", f"192.168.0.{i}/24") for i in range(1, 4)]
    nodes = [node(f"h{i}", LO, nic("eth0", f"10.1.0.{i}/24"), mgmt[i - 1]) for i in (1, 2)]
    nodes.append(node("h3", LO, nic("eth0", "10.1.0.3/24", up=False, running=False), mgmt[2]))
    found = judged("NET003", nodes, pairs("both", "h3", **CUT))
    assert told(found) == [("fail", "h3")]
    assert found.findings[0].what.startswith("eth0 is down or has no link, so the job would use mgmt0")


@pytest.mark.parametrize(
    ("count", "change", "state", "node", "says"),
    [
        (4, pairs("in", "h3", path_mtu=PathMtu(sent=1500, arrived=1400)), "warn", "h3", "to h3 vanish"),
        (4, pairs("out", "h3", path_mtu=PathMtu(sent=9000, arrived=1500)), "warn", "h3", "from h3 vanish"),
        (
            4,
            pairs("out", "h3", path_mtu=PathMtu(sent=9000, arrived=1500), bursts=[STALLED]),
            "fail",
            "h3",
            "stood",
        ),
        (
            4,
            pairs("out", "h3", path_mtu=PathMtu(sent=9000, arrived=1500, told=1500), bursts=[STALLED]),
            "warn",
            "h3",
            "from h3",
        ),
        (
            3,
            pairs("both", "h1", "h2", "h3", path_mtu=PathMtu(sent=9000, arrived=1500)),
            "warn",
            None,
            "between any",
        ),
        (2, pairs("in", "h2", path_mtu=PathMtu(sent=1500, arrived=1400)), "warn", "h2", "from h1 to h2 vanish"),
        (
            3,
            pairs("both", "h1", "h2", "h3", echoes=NO_UDP, path_mtu=PathMtu(sent=1500, arrived=0)),
            "unknown",
            None,
            "no UDP packet came back",
        ),
    ],
)
def test_path_mtu(count: int, change: Change, state: str, node: str | None, says: str) -> None:
    found = judged("NET007", hosts(count), change)
    assert told(found) == [(state, node)]
    assert says in found.findings[0].what


def test_different_mtus_are_a_note_where_everything_arrives() -> None:
    nodes = hosts(3, h3=nic("eth0", "10.1.0.3/24", mtu=9000))
    assert judged("NET004", nodes).state.value == "note"
    short = pairs("out", "h3", path_mtu=PathMtu(sent=9000, arrived=1500))
    assert told(judged("NET004", nodes, short)) == [("warn", "h3")]


@pytest.mark.parametrize(
    ("count", "change", "expected"),
    [
        (4, pairs("out", "h3", bursts=[SLOW]), [("warn", "h3")]),
        (4, pairs("in", "h3", bursts=[SLOW]), [("warn", "h3")]),
        (2, pairs("out", "h2", bursts=[SLOW]), [("warn", "h2")]),
        (4, lambda a, b: {"bursts": [SLOW]} if (a, b) == ("h1", "h2") else {}, []),
        (4, pairs("both", "h1", "h2", "h3", "h4", bursts=[SLOW]), []),
        (4, pairs("out", "h3", bursts=[replace(SLOW, starved=0.5)]), [("warn", "h3")]),
        (
            4,
            pairs("out", "h3", bursts=[replace(SLOW, bytes=8_000_000, starved=0.8)]),
            [],
        ),  # 0.4 Gb/s, its host busy
        (4, pairs("out", "h3", bursts=[replace(FAST, bytes=50_000_000)]), []),  # 2.7 Gb/s: may be the CPU
        (3, pairs("out", "h3", bursts=[SLOW], echoes=Echoes(sent=300, arrived=280, returned=270)), []),
    ],
)
def test_slow_bursts(count: int, change: Change, expected: list[tuple[str, str]]) -> None:
    found = judged("NET008", hosts(count), change)
    assert [one for one in told(found) if one[0] != "ok"] == expected
    assert all(one[0] != "warn" for one in told(judged("NET009", hosts(count), pairs("out", "h3", bursts=[SLOW]))))


@pytest.mark.parametrize(
    ("reported", "change", "expected"),
    [
        (25000, pairs("out", "h3", bursts=[SLOW]), [("fail", "h3")]),
        (100, pairs("out", "h3", bursts=[SLOW]), [("warn", "h3")]),
        (25000, pairs("both", "h1", "h2", "h3", bursts=[SLOW]), [("warn", None)]),
    ],
)
def test_bursts_against_the_reported_speed(
    reported: int, change: Change, expected: list[tuple[str, str | None]]
) -> None:
    nodes = [node(f"h{i}", LO, nic("eth0", f"10.1.0.{i}/24", speed_mbit=reported)) for i in (1, 2, 3)]
    assert [one for one in told(judged("NET008", nodes, change)) if one[0] != "ok"] == expected


def test_a_node_that_reports_less_is_not_told_twice() -> None:
    nodes = [node(f"h{i}", LO, nic("eth0", f"10.1.0.{i}/24", speed_mbit=25000)) for i in (1, 2)]
    nodes.append(node("h3", LO, nic("eth0", "10.1.0.3/24", speed_mbit=100)))
    assert told(judged("NET008", nodes, pairs("out", "h3", bursts=[SLOW])))[0] == ("warn", "h3")
    assert len(judged("NET008", nodes, pairs("out", "h3", bursts=[SLOW])).findings) == 1


LOSS_THERE = Echoes(sent=300, arrived=291, returned=291)
LOSS_BACK = Echoes(sent=300, arrived=300, returned=291)


def _loses_incoming(a: str, b: str) -> dict[str, Any]:
    return {"echoes": LOSS_THERE} if b == "h3" else {"echoes": LOSS_BACK} if a == "h3" else {}


@pytest.mark.parametrize(
    ("count", "change", "expected", "says"),
    [
        (4, _loses_incoming, [("warn", "h3")], "lost to h3"),
        (3, _loses_incoming, [("warn", "h3")], "lost to h3"),
        (
            4,
            pairs("both", "h3", echoes=Echoes(sent=300, arrived=291, returned=282)),
            [("warn", "h3")],
            "to and from",
        ),
        (2, pairs("in", "h2", echoes=LOSS_THERE), [("warn", "h1")], "from h1 to h2"),
        (3, pairs("both", "h1", "h2", "h3", echoes=LOSS_THERE), [("warn", None)], "between all nodes"),
        (3, pairs("in", "h3", echoes=Echoes(sent=300, arrived=299, returned=299)), [], ""),
        (4, pairs("out", "h3", bursts=[replace(FAST, retransmits=30_000)]), [("warn", "h3")], "sent again"),
        (4, pairs("out", "h3", bursts=[replace(FAST, retransmits=6_000)]), [], ""),
    ],
)
def test_lost_packets(count: int, change: Change, expected: list[tuple[str, str | None]], says: str) -> None:
    found = judged("NET009", hosts(count), change)
    assert [one for one in told(found) if one[0] != "ok"] == expected
    assert says in found.findings[0].what


def test_what_a_busy_host_drops_itself_is_no_loss() -> None:
    nodes = hosts(3)
    given = measured(nodes, pairs("in", "h3", echoes=LOSS_THERE)).reach
    busy = Measurements(reach=[replace(one, udp_overflows=20 * (one.node == "h3")) for one in given])
    assert verdict("NET009", *nodes, measurements=busy).state.value == "ok"


@pytest.mark.parametrize(
    ("errors", "drops", "packets", "state"), [(0, 0, 20000, "ok"), (15, 0, 20000, "ok"), (0, 60, 20000, "warn")]
)
def test_interface_counters(errors: int, drops: int, packets: int, state: str) -> None:
    nodes = hosts(3)
    given = measured(nodes).reach
    counters = Counters(packets=packets, errors=errors, drops=drops)
    found = verdict(
        "NET009", *nodes, measurements=Measurements(reach=[replace(given[0], counters=counters), *given[1:]])
    )
    assert found.state.value == state


def _off(name: str, seconds: float) -> Change:
    def change(a: str, b: str) -> dict[str, Any]:
        offset = seconds * ((b == name) - (a == name))
        return {"clock": ClockOffset(seconds=offset, within_s=1e-4)}

    return change


@pytest.mark.parametrize(
    ("count", "change", "state", "node", "says"),
    [
        (4, _off("h3", 90), "fail", "h3", "its clock is 90 s ahead of the other 3 nodes"),
        (4, _off("h3", -90), "fail", "h3", "its clock is 90 s behind the other 3 nodes"),
        (4, _off("h1", -90), "fail", "h1", "its clock is 90 s behind"),
        (3, _off("h2", 2), "warn", "h2", "2 s ahead"),
        (3, _off("h2", 0.5), "ok", None, "agree within 500 ms"),
        (2, _off("h2", 90), "fail", "h2", "90 s ahead of that of h1; no majority"),
        (2, _off("h2", -90), "fail", "h1", "90 s ahead of that of h2; no majority"),
    ],
)
def test_clocks(count: int, change: Change, state: str, node: str | None, says: str) -> None:
    found = judged("HST009", hosts(count), change)
    assert told(found) == [(state, node)]
    assert says in found.findings[0].what


def test_clock_limits_are_the_sites_own() -> None:
    policy = Policy(thresholds={"HST009.fail_s": 100.0})
    assert judged("HST009", hosts(3), _off("h2", 90), policy=policy).state.value == "warn"


def _answers(*addresses: str) -> Resolution:
    return Resolution(name="x", addresses=list(addresses))


@pytest.mark.parametrize(
    ("change", "expected", "says"),
    [
        (
            lambda a, b: {"resolved": _answers()} if (a, b) == ("h1", "h2") else {},
            [("warn", "h1")],
            "not resolve on h1",
        ),
        (pairs("in", "h2", resolved=_answers()), [("warn", "h1")], "does not resolve on h[1,3]"),
        (pairs("in", "h2", resolved=_answers("10.9.9.9")), [("warn", "h1")], "resolves to 10.9.9.9"),
        (pairs("in", "h2", resolved=_answers("127.0.1.1")), [("warn", "h1")], "resolves to 127.0.1.1"),
        (
            pairs("out", "h2", resolved=_answers()),
            [("warn", "h2")],
            "names of 2 nodes (h[1,3]) do not resolve on h2",
        ),
        (pairs("both", "h1", "h2", "h3", resolved=_answers()), [("warn", "h1")], "names of 3 nodes"),
        (pairs("out", "h2", resolved=Unread("timed_out", "late")), [("unknown", "h2")], "no answer in time"),
        (pairs("out", "h2", resolved=_answers("10.9.9.9", "10.1.0.1", "10.1.0.3")), [], ""),
    ],
)
def test_names_of_the_peers(change: Change, expected: list[tuple[str, str]], says: str) -> None:
    found = judged("NET013", hosts(3), change)
    assert [one for one in told(found) if one[0] != "ok"] == expected
    assert says in found.findings[0].what


@pytest.mark.parametrize("code", ["HST009", "NET006", "NET007", "NET009", "NET013"])
def test_what_was_not_measured_is_skipped(code: str) -> None:
    assert verdict(code, *hosts(3)).state.value == "skipped"
    simulated = verdict(code, *hosts(3), job=Job(simulated=True), measurements=measured(hosts(3)))
    assert simulated.reason == "simulated nodes are one machine"


def test_many_nodes_are_judged_by_sampled_pairs() -> None:
    nodes = hosts(100)
    full = {one.node: one for one in measured(nodes, pairs("in", "h77", connect=DROPPED)).reach}
    steps = [sign * 2**power for power in range(7) for sign in (1, -1)]
    sampled = []
    for i, one in enumerate(nodes):
        near = {f"h{(i + step) % 100 + 1}" for step in steps}
        sampled.append(replace(full[one.name], peers=[p for p in full[one.name].peers if p.peer in near]))
    found = verdict("NET006", *nodes, measurements=Measurements(reach=sampled))
    assert told(found) == [("fail", "h77")]


def test_blame_takes_the_node_before_its_pairs() -> None:
    names = "abcd"
    judged_pairs = {(a, b) for a in names for b in names if a != b}
    into_b = {pair for pair in judged_pairs if pair[1] == "b"}
    culprits, left = blame(into_b | {("c", "d")}, judged_pairs)
    assert [(one.node, one.way) for one in culprits] == [("b", "in")]
    assert left == [("c", "d")]
    touching = {pair for pair in judged_pairs if "b" in pair}
    assert [(one.node, one.way) for one in blame(touching, judged_pairs)[0]] == [("b", "both")]


def test_groups_hang_together() -> None:
    assert groups("abcde", [("a", "b"), ("c", "d"), ("b", "e")]) == [["a", "b", "e"], ["c", "d"]]
