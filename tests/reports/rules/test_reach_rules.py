"""Rules about who reaches whom, and with how large packets: one fault, one finding, the right node."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Connect,
    Job,
    Library,
    Measurements,
    Nccl,
    NoDoor,
    PathMtu,
    replace,
)
from ncclcheck.reports.subjects.links.reached import blame, groups
from tests.helpers.clusters import LO, nic, node, route, states_of, verdict
from tests.helpers.reach_clusters import (
    CODES,
    CUT,
    DROPPED,
    NO_UDP,
    STALLED,
    Change,
    codes_told,
    hosts,
    judged,
    measured,
    pairs,
)


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
        (2, pairs("both", "h1", **CUT), [("fail", None)], "h1 and h2 cannot connect to each other"),
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
    judgement = judged("NET006", hosts(count), change)
    assert states_of(judgement) == expected
    assert says in judgement.findings[0].what


def test_a_node_whose_link_is_down_is_named_with_its_link() -> None:
    nodes = hosts(4, h3=nic("eth0", "10.1.0.3/24", running=False))
    old = Nccl(loaded=Library(path="/x", origin="torch", version="2.27.7"))
    nodes = [replace(machine, nccl=old) for machine in nodes]  # this one takes an interface without a link
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
    assert states_of(judged("NET006", hosts(2), silent))[0] == ("unknown", "h1")


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
    assert ("fail", "h3") in states_of(judged("NET003", nodes, pairs("both", "h3", **CUT)))


@pytest.mark.parametrize(("prefix", "state"), [(16, "warn"), (28, "fail"), (24, "ok")])
def test_wrong_prefix_length(prefix: int, state: str) -> None:
    nodes = [*hosts(3), node("h4", LO, nic("eth0", f"10.1.0.100/{prefix}"))]
    broken = pairs("both", "h4", **CUT) if state == "fail" else None
    judgement = judged("NET003", nodes, broken)
    assert (judgement.state.value, judgement.findings[0].where.node) == (state, "h4" if state != "ok" else None)
    assert state == "ok" or f"has the prefix length /{prefix}" in judgement.findings[0].what


def test_a_prefix_that_leads_elsewhere_is_the_failure_where_connections_fail() -> None:
    """One of the others is the gateway of that way, so that its own connections pass."""
    mgmt = [nic("mgmt0", f"10.2.0.{i}/24") for i in (1, 2, 3)]
    nodes = [node(f"h{i}", LO, nic("eth0", f"10.1.0.{i}/24"), mgmt[i - 1]) for i in (1, 2)]
    routes = [
        route("10.1.0.32/27", "eth0"),
        route("10.2.0.0/24", "mgmt0"),
        route("0.0.0.0/0", "mgmt0", "10.2.0.1"),
    ]
    nodes.append(node("h3", LO, nic("eth0", "10.1.0.33/27"), mgmt[2], routes=routes))
    for lost, state in (({"h2", "h3"}, "fail"), ({"nobody"}, "warn")):

        def broken(a: str, b: str, lost: set[str] = lost) -> dict[str, Any]:
            return {"interface": "mgmt0" if a == "h3" else "eth0", **(CUT if {a, b} == lost else {})}

        (finding,) = [
            finding for finding in judged("NET003", nodes, broken).findings if finding.state.value != "ok"
        ]
        assert (finding.state.value, finding.where.node) == (state, "h3")
        assert "has the prefix length /27, the others /24; its way to" in finding.what
        assert "ip addr add 10.1.0.33/24" in str(finding.remedies)


def test_a_link_that_is_down_explains_the_other_interface() -> None:
    mgmt = [nic("mgmt0", f"192.168.0.{i}/24") for i in range(1, 4)]
    nodes = [node(f"h{i}", LO, nic("eth0", f"10.1.0.{i}/24"), mgmt[i - 1]) for i in (1, 2)]
    nodes.append(node("h3", LO, nic("eth0", "10.1.0.3/24", up=False, running=False), mgmt[2]))
    judgement = judged("NET003", nodes, pairs("both", "h3", **CUT))
    assert states_of(judgement) == [("fail", "h3")]
    assert judgement.findings[0].what.startswith(
        "eth0 is down (switched off on the node), so the job would use mgmt0"
    )
    assert "ip link set dev eth0 up   # on h3" in judgement.findings[0].remedies[0].commands
    nodes[2] = node("h3", LO, nic("eth0", "10.1.0.3/24", up=True, running=False), mgmt[2])
    (dark,) = judged("NET003", nodes, pairs("both", "h3", **CUT)).findings
    assert dark.what.startswith("eth0 is up, but has no link, so the job would use mgmt0")
    assert not any("link set" in line for remedy in dark.remedies for line in remedy.commands)


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
            "no UDP packet of 576 bytes or more came back",
        ),
        (  # small packets come back: a host that is short of a core confirms too late
            3,
            pairs("both", "h1", "h2", "h3", path_mtu=PathMtu(sent=1500, arrived=0), bursts=[STALLED]),
            "unknown",
            None,
            "no UDP packet of 576 bytes or more came back",
        ),
    ],
)
def test_path_mtu(count: int, change: Change, state: str, node: str | None, says: str) -> None:
    judgement = judged("NET007", hosts(count), change)
    assert states_of(judgement) == [(state, node)]
    assert says in judgement.findings[0].what


def test_different_mtus_are_a_note_where_everything_arrives() -> None:
    nodes = hosts(3, h3=nic("eth0", "10.1.0.3/24", mtu=9000))
    assert judged("NET004", nodes).state.value == "note"
    short = pairs("out", "h3", path_mtu=PathMtu(sent=9000, arrived=1500))
    assert states_of(judged("NET004", nodes, short)) == [("warn", "h3")]


@pytest.mark.parametrize("code", ["HST009", "NET006", "NET007", "NET009", "NET013"])
def test_what_was_not_measured_is_skipped(code: str) -> None:
    assert verdict(code, *hosts(3)).state.value == "skipped"
    simulated = verdict(code, *hosts(3), job=Job(simulated=True), measurements=measured(hosts(3)))
    assert simulated.reason == "simulated nodes are one machine"


def test_many_nodes_are_judged_by_sampled_pairs() -> None:
    nodes = hosts(100)
    full = {reach.node: reach for reach in measured(nodes, pairs("in", "h77", connect=DROPPED)).reach}
    steps = [sign * 2**power for power in range(7) for sign in (1, -1)]
    sampled = []
    for i, machine in enumerate(nodes):
        near = {f"h{(i + step) % 100 + 1}" for step in steps}
        sampled.append(replace(full[machine.name], peers=[p for p in full[machine.name].peers if p.peer in near]))
    judgement = verdict("NET006", *nodes, measurements=Measurements(reach=sampled))
    assert states_of(judgement) == [("fail", "h77")]


def test_blame_takes_the_node_before_its_pairs() -> None:
    names = "abcd"
    judged_pairs = {(a, b) for a in names for b in names if a != b}
    into_b = {pair for pair in judged_pairs if pair[1] == "b"}
    culprits, left = blame(into_b | {("c", "d")}, judged_pairs)
    assert [(culprit.node, culprit.way) for culprit in culprits] == [("b", "in")]
    assert left == [("c", "d")]
    touching = {pair for pair in judged_pairs if "b" in pair}
    assert [(culprit.node, culprit.way) for culprit in blame(touching, judged_pairs)[0]] == [("b", "both")]


def test_groups_hang_together() -> None:
    assert groups("abcde", [("a", "b"), ("c", "d"), ("b", "e")]) == [["a", "b", "e"], ["c", "d"]]


_TAKEN = "Address already in use"


@pytest.mark.parametrize(
    ("protocol", "doorless", "expected"),
    [
        ("TCP", ["h3"], [("fail", "h3")]),
        ("UDP", ["h3"], [("unknown", "h3")]),
        ("TCP", ["h2", "h3"], [("fail", "h2"), ("fail", "h3")]),
    ],
)
def test_a_node_that_can_open_no_port(protocol: Any, doorless: list[str], expected: list[tuple[str, str]]) -> None:
    nodes = hosts(3)
    whole = measured(nodes).reach
    heard = [
        replace(reach, peers=[peer for peer in reach.peers if peer.peer not in doorless])
        for reach in whole if reach.node not in doorless
    ]  # fmt: skip
    refused = [NoDoor(node=name, address=f"10.1.0.{name[1]}", protocol=protocol, why=_TAKEN) for name in doorless]
    judgement = verdict("NET006", *nodes, measurements=Measurements(reach=heard, no_doors=refused))
    assert states_of(judgement) == expected
    own = next(finding for finding in judgement.findings if finding.where.node == "h3")
    assert own.what == f"it can open no {protocol} port on its own address 10.1.0.3: {_TAKEN}"


@pytest.mark.parametrize(
    ("interfaces", "says", "fix"),
    [
        (["lo", "mgmt0"], "the interface eth0 with the address 10.1.0.3 is gone", "ip -br link"),
        (["lo", "eth0"], "eth0 has lost its address 10.1.0.3", "ip addr add 10.1.0.3/24 dev eth0"),
    ],
)
def test_an_address_cannot_be_given_to_an_interface_that_is_gone(
    interfaces: list[str], says: str, fix: str
) -> None:
    nodes = hosts(3)
    why = "Cannot assign requested address"
    gone = NoDoor(node="h3", address="10.1.0.3", protocol="TCP", why=why, interfaces=interfaces)
    heard = [reach for reach in measured(nodes).reach if reach.node != "h3"]
    judgement = verdict("NET006", *nodes, measurements=Measurements(reach=heard, no_doors=[gone]))
    own = next(finding for finding in judgement.findings if finding.where.node == "h3")
    commands = " ".join(line for fix in own.remedies for line in fix.commands)
    assert says in own.what
    assert fix in commands
    assert ("ip addr add" in commands) is ("eth0" in interfaces)
