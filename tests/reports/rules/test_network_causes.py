"""Faults of a network whose symptoms stand far from the cause: the cause is found and comes first."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from ncclcheck.probes.facts import (
    ByName,
    Cluster,
    Connect,
    Echoes,
    Interruptions,
    Job,
    LinkEvents,
    Measurements,
    Meeting,
    Neighbour,
    Node,
    PathMtu,
    Resolution,
    Run,
    Volley,
    replace,
)
from ncclcheck.probes.machine.net.addresses import parsed_neighbours
from ncclcheck.reports.judgement.causal import causes_first
from ncclcheck.reports.judgement.findings import Finding, State, Verdict, Where, fail, seen, you
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.subjects.addresses.names import hosts_file
from ncclcheck.reports.text import closing
from tests.helpers.clusters import LO, nic, node, route, states_of, verdict
from tests.helpers.reach_clusters import CUT, DROPPED, STALLED, Change, codes_told, hosts, judged, measured, pairs

DOCKER = nic("docker0", "172.17.0.1/16", kind="bridge", members=["veth1"])
ETH0 = nic("eth0", "10.1.0.1/24")


def _on(a: str, b: str, **facts: Any) -> Change:
    """These facts between two nodes, both ways."""
    return lambda end, other: facts if {end, other} == {a, b} else {}


# Path MTU


def test_two_nodes_that_lose_large_packets_both_ways_are_one_finding() -> None:
    lost = pairs("both", "h2", path_mtu=PathMtu(sent=1500, arrived=1400), bursts=[STALLED])
    judgement = judged("NET007", hosts(2), lost)
    assert states_of(judgement) == [("fail", "h2")]
    assert "between h1 and h2, both ways, vanish: 1500 bytes do not arrive, 1400 do" in judgement.findings[0].what
    assert "mtu 1400   # on every node" in judgement.findings[0].remedies[0].commands[0]


# Names


def test_two_nodes_that_would_tell_the_same_address_are_a_failure_for_gloo() -> None:
    pair = [node(n, LO, nic("eth0", f"10.1.0.{i}/24"), DOCKER, own="172.17.0.1") for i, n in enumerate("ab", 1)]
    judgement = verdict("NET005", *pair, job=Job(nodes_asked=2, backend="gloo"))
    assert states_of(judgement) == [("fail", "a"), ("fail", "b")]
    assert "gloo would advertise 172.17.0.1 (docker0), and so would 1 other node" in judgement.findings[0].what
    assert verdict("NET005", *pair, job=Job(nodes_asked=2, backend="nccl")).state is State.WARN


def test_localhost_as_a_nodes_own_name_is_never_taken_from_loopback() -> None:
    own = Resolution(name="localhost", addresses=["127.0.0.1"])
    machine = node("h2", LO, ETH0)
    machine = replace(machine, host=replace(machine.host, own_name=own))
    judgement = verdict("NET005", machine, node("b", LO, nic("eth0", "10.1.0.2/24")), job=Job(backend="gloo"))
    (finding,) = [finding for finding in judgement.findings if finding.where.node == "h2"]
    assert finding.state is State.FAIL
    assert "set-hostname h2" in finding.remedies[1].commands[0]
    assert "/etc/hosts" not in str(finding.remedies)


def test_one_name_on_a_bridge_is_a_failure_too() -> None:
    machine = node("a", LO, ETH0, DOCKER, own="172.17.0.1")
    judgement = verdict(
        "NET005", machine, node("b", LO, nic("eth0", "10.1.0.2/24")), job=Job(nodes_asked=2, backend="gloo")
    )
    assert states_of(judgement) == [("fail", "a")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("127.0.0.1 localhost\n127.0.1.1 gpu1\n", "127.0.0.1 localhost\n10.1.0.1 gpu1\n"),
        ("127.0.0.1 localhost gpu1\n", "127.0.0.1 localhost\n10.1.0.1 gpu1\n"),
        ("172.17.0.1 gpu1 gpu1-mgmt gpu10\n", "172.17.0.1 gpu1-mgmt gpu10\n10.1.0.1 gpu1\n"),
        ("172.17.0.10 gpu1\n1172.17.0.1 gpu1\n", "172.17.0.10 gpu1\n1172.17.0.1 gpu1\n10.1.0.1 gpu1\n"),
        ("# 172.17.0.1 gpu1\n10.1.0.2 gpu2\n", "# 172.17.0.1 gpu1\n10.1.0.2 gpu2\n10.1.0.1 gpu1\n"),
    ],
)
def test_the_line_for_etc_hosts_takes_one_name_from_wrong_addresses(
    tmp_path: Path, before: str, after: str
) -> None:
    file = tmp_path / "hosts"
    file.write_text(before)
    line = hosts_file.named("gpu1", "10.1.0.1", ["172.17.0.1", "127.0.0.1", "127.0.1.1"])
    subprocess.run(["sh", "-c", line.replace("/etc/hosts", str(file))], check=True, timeout=10)
    assert file.read_text() == after


def test_nothing_hostile_comes_into_the_line_for_etc_hosts() -> None:
    line = hosts_file.named("a'; reboot '", "10.1.0.1", ["127.0.0.1'; reboot '"])
    assert line == "echo '10.1.0.1 NAME' >> /etc/hosts"


# Addresses


def test_a_bridge_with_the_address_of_a_peer_is_told_and_no_firewall_accused() -> None:
    docker = nic("docker0", "10.1.0.3/32", kind="bridge", members=[])
    nodes = hosts(3)
    nodes[1] = node("h2", LO, nic("eth0", "10.1.0.2/24"), docker)
    assert codes_told(nodes, _on("h2", "h3", **CUT)) == {("NET010", "fail", "h2")}
    finding = judged("NET010", nodes).findings[0]
    assert (finding.where.device, finding.where.peer) == ("docker0", "h3")
    assert "docker0 of h2 has 10.1.0.3, the address of eth0 of h3" in finding.what
    assert "ip addr del 10.1.0.3/32 dev docker0" in finding.remedies[0].commands


def test_one_bridge_that_all_nodes_chose_is_one_finding() -> None:
    docker = nic("docker0", "172.17.0.1/16", kind="bridge", members=[])
    env = {"NCCL_SOCKET_IFNAME": "docker0"}
    same = [node(f"h{i}", LO, nic("eth0", f"10.1.0.{i}/24"), docker, env=env) for i in (1, 2, 3)]
    assert states_of(verdict("NET010", *same)) == [("fail", "h1")]


def test_an_interface_that_is_down_owns_no_address() -> None:
    down = nic("docker0", "10.1.0.3/32", kind="bridge", members=[], up=False)
    nodes = [*hosts(1), node("h2", LO, nic("eth0", "10.1.0.2/24"), down), *hosts(3)[2:]]
    assert verdict("NET010", *nodes).state is State.OK


def _wide(position: int) -> list[Any]:
    """h2 is behind a router; of h1 and h3 one has a /8."""
    default = [route("0.0.0.0/0", "eth0", "10.1.0.254")]
    nodes = [
        node(f"h{i}", LO, nic("eth0", f"10.1.{9 * (i == 2)}.{i}/{8 if i == position else 24}"), routes=default)
        for i in (1, 2, 3)
    ]
    return [replace(machine, network=replace(machine.network, routes=default)) for machine in nodes]


@pytest.mark.parametrize("position", [1, 3])
def test_a_prefix_that_is_too_wide_is_the_cause_where_packets_are_lost(position: int) -> None:
    name = f"h{position}"
    assert codes_told(_wide(position), _on(name, "h2", **CUT)) == {("NET003", "fail", name)}
    finding = judged("NET003", _wide(position), _on(name, "h2", **CUT)).findings[0]
    assert "prefix length /8 on a wire where 10.1.0.0/24" in finding.what
    assert "it takes h2 for a neighbour" in finding.what
    assert f"ip addr add 10.1.0.{position}/24 dev eth0 && ip addr del" in finding.remedies[0].commands[-1]


def test_a_prefix_that_is_too_wide_is_a_warning_where_all_find_each_other() -> None:
    assert states_of(judged("NET003", _wide(1)))[0] == ("warn", "h1")


def test_where_nobody_reaches_a_node_the_prefix_is_not_the_cause() -> None:
    judgement = judged("NET003", _wide(1), pairs("both", "h2", **CUT))
    assert states_of(judgement)[0] == ("warn", "h1")


def _two(*second: Any) -> list[Any]:
    near = [route("10.1.0.0/24", "eth0")]
    return [
        node("h1", LO, ETH0, routes=near),
        node("h2", LO, *second, routes=[*near, route("10.6.0.0/24", "eth0")]),
    ]


def test_the_second_address_tells_which_of_two_nodes_is_off() -> None:
    judgement = verdict("NET003", *_two(nic("eth0", "10.6.0.2/24", "10.1.0.2/24")))
    assert states_of(judgement) == [("fail", "h2")]
    assert "eth0 has 10.6.0.2/24 first" in judgement.findings[0].what
    assert "its second address, 10.1.0.2, is in 10.1.0.0/24 (h1)" in judgement.findings[0].what
    commands = [line for remedy in judgement.findings[0].remedies for line in remedy.commands]
    assert "ip addr del 10.6.0.2/24 dev eth0 && ip addr add 10.6.0.2/24 dev eth0" in commands
    assert not [line for line in commands if "IFNAME" in line]


def test_another_interface_in_the_right_subnet_is_named() -> None:
    nodes = _two(nic("eth0", "10.6.0.2/24"), nic("eth1", "10.1.0.2/24"))
    judgement = verdict("NET003", *[replace(n, network=replace(n.network, routes=[])) for n in nodes])
    assert states_of(judgement)[0] == ("fail", "h2")
    assert 'export NCCL_SOCKET_IFNAME="=eth1"' in judgement.findings[0].remedies[0].commands


@pytest.mark.parametrize(("endpoint", "blamed"), [("10.1.0.1", "b"), ("10.6.0.2", "a"), ("", None)])
def test_the_endpoint_decides_between_two_nodes_and_else_nobody_is_blamed(
    endpoint: str, blamed: str | None
) -> None:
    met = Meeting(endpoint=f"{endpoint}:29500", told_by="options", outcome="open", addresses=[endpoint])
    job = Job(nodes_asked=2, launcher="join" if endpoint else "ssh", meeting=met if endpoint else None)
    pair = [node("a", LO, ETH0), node("b", LO, nic("eth0", "10.6.0.2/24"))]
    judgement = verdict("NET003", *pair, job=job)
    assert states_of(judgement) == [("fail", blamed)]
    assert (
        "where the endpoint is" in judgement.findings[0].what
        if endpoint
        else "nothing" in judgement.findings[0].what
    )
    assert not [line for remedy in judgement.findings[0].remedies for line in remedy.commands if "IFNAME" in line]


# Routes of a join


@pytest.mark.parametrize(
    ("interface", "words", "command"),
    [
        (
            nic("eth0", "10.9.0.2/24"),
            "its addresses are eth0 10.9.0.2/24",
            "ip route add 10.1.0.0/24 via 10.9.0.1 dev eth0",
        ),
        (nic("eth0", "10.1.0.99/28"), "eth0 has 10.1.0.99/28, so that", "ip route show dev eth0"),
        (nic("eth0", "10.1.0.2/24", up=False), "eth0 is down, and 10.1.0.1 is in its", "ip link set dev eth0 up"),
        (nic("eth0", up=False), "eth0 is down", "ip link set dev eth0 up"),
    ],
)
def test_a_node_without_a_route_to_node_rank_0_is_certain_of_it(interface: Any, words: str, command: str) -> None:
    met = Meeting(
        endpoint="10.1.0.1:29500", told_by="options", outcome="unrouted", node_rank=1, addresses=["10.1.0.1"],
        detail="no route to 10.1.0.1:29500: Network is unreachable",
    )  # fmt: skip
    judgement = verdict("RUN010", node("b", LO, interface), job=Job(launcher="join", nodes_asked=2, meeting=met))
    assert states_of(judgement) == [("fail", "b")]
    assert words in judgement.findings[0].what
    assert judgement.findings[0].remedies[0].commands[0].startswith(command)


# New connections that are dropped


def _late(*ends: str, late: int = 5) -> Change:
    return lambda _, b: {"volley": Volley(opened=8, late=late if not ends or b in ends else 0)}


def test_a_limit_on_new_connections_is_a_warning_with_its_node() -> None:
    assert codes_told(hosts(3), _late("h2")) == {("NET006", "warn", "h2")}
    assert (
        "come in to h2: of 16 that were opened at once 10"
        in judged("NET006", hosts(3), _late("h2")).findings[0].what
    )
    assert codes_told(hosts(2), _late("h2")) == {("NET006", "warn", "h2")}


def test_a_stray_lost_packet_is_no_limit() -> None:
    assert codes_told(hosts(3), _late(late=0)) == set()
    assert codes_told(hosts(2), _late("h2", late=2)) == set()


def test_a_wire_that_loses_packets_is_not_taken_for_a_limit() -> None:
    def change(a: str, b: str) -> dict[str, Any]:
        lost = {"echoes": Echoes(sent=300, arrived=270, returned=270)} if b == "h2" else {}
        return {**_late("h2")(a, b), **lost}

    assert codes_told(hosts(3), change) == {("NET009", "warn", "h2")}


# The order


def _bad(code: str, name: str) -> Verdict:
    finding: Finding = fail(Where(node=name), "x", why="x", owner="node", evidence=[seen("x", 1)], fix=[you("x")])
    return Verdict(code=code, title=code, state=State.FAIL, findings=[finding])


def test_what_stands_on_another_finding_comes_after_it() -> None:
    given = [_bad(code, "a") for code in ("NCC007", "NET003", "NET005", "NET007", "NET010")]
    assert [entry.code for entry in causes_first(given)] == ["NCC007", "NET003", "NET010", "NET005", "NET007"]
    turned = [_bad(code, "a") for code in ("NET001", "NET006", "NCC007")]
    assert [entry.code for entry in causes_first(turned)] == ["NCC007", "NET001", "NET006"]


def test_the_last_line_names_the_cause() -> None:
    bad = [_bad("NET005", "b"), _bad("NET010", "a")]
    document = Document(
        version="1", command="env", state="fail", exit_code=1, started="", seconds=1.0, counts={}, job=Job(),
        stages=[], run=Run(), nodes=[], verdicts=bad, measurements=Measurements(),
    )  # fmt: skip
    assert "NET010 on a first" in closing.decision(document)


def test_no_rule_stands_on_itself() -> None:
    """Else no order of causes would exist."""
    verdicts = [_bad(rule.code, "a") for rule in all_rules()]
    order = {entry.code: place for place, entry in enumerate(causes_first(verdicts))}
    assert not [
        (rule.code, ground) for rule in all_rules() for ground in rule.ground if order[ground] > order[rule.code]
    ]


def test_one_variable_has_one_value_in_a_report() -> None:
    """gloo goes by the own name, which is eth1's: advice of the two that share a subnet names this one."""
    shared = [nic("eth0", "10.1.0.1/24"), nic("eth1", "10.1.0.51/24"), nic("eth2", "10.1.0.91/24")]
    machine = node("a", LO, *shared, own="10.1.0.51")
    cluster = Cluster(nodes=[machine], job=Job(backend="gloo"))
    judgement = next(
        v for v in judge(cluster, [r for r in all_rules() if r.code == "NET011"]) if v.code == "NET011"
    )
    commands = {
        line for f in judgement.findings for fix in f.remedies for line in fix.commands if "IFNAME" in line
    }
    assert commands == {"export NCCL_SOCKET_IFNAME='=eth1'"}


def test_pairs_that_a_cause_explains_are_not_asked_again() -> None:
    nodes = hosts(3)
    nodes[1] = node("h2", LO, nic("eth0", "10.1.0.2/24"), nic("docker0", "10.1.0.3/32", kind="bridge", members=[]))
    cluster = Cluster(
        nodes=nodes, job=Job(nodes_asked=3), measurements=measured(nodes, _on("h2", "h3", connect=DROPPED))
    )
    verdicts = {v.code: v for v in judge(cluster, [r for r in all_rules() if r.code in ("NET010", "NET006")])}
    assert verdicts["NET006"].state is State.OK


def test_segments_sent_again_where_large_packets_vanish_are_no_loss_of_their_own() -> None:
    again = replace(STALLED, segments=5909, retransmits=271)

    def change(a: str, b: str) -> dict[str, Any]:
        lost = {"path_mtu": PathMtu(sent=1500, arrived=1280), "bursts": [STALLED]}
        return lost if a == "h2" else {"bursts": [again]} if (a, b) == ("h3", "h2") else {}

    assert codes_told(hosts(3), change) == {("NET007", "fail", "h2")}


# Routes that shadow the job's subnet

NEAR = route("10.1.0.0/24", "eth0")
MGMT = nic("mgmt0", "10.9.0.2/24")
STRAY = [route("10.1.0.0/25", "mgmt0"), NEAR, route("10.9.0.0/24", "mgmt0")]
HOST = [route("10.1.0.1/32", "mgmt0", "10.9.0.1"), NEAR]
BRIDGE = nic("docker0", "10.1.0.100/25", kind="bridge", members=[])
SHADOW = [route("10.1.0.0/25", "docker0"), NEAR]


def _shadowed(*others: Any, routes: Any) -> list[Any]:
    nodes = hosts(3)
    nodes[1] = node("h2", LO, nic("eth0", "10.1.0.2/24"), *others, routes=routes)
    return nodes


@pytest.mark.parametrize(
    ("other", "routes", "line", "command"),
    [
        (MGMT, STRAY, "10.1.0.0/25 dev mgmt0", "ip route del 10.1.0.0/25 dev mgmt0"),
        (MGMT, HOST, "10.1.0.1/32 via 10.9.0.1 dev mgmt0", "ip route del 10.1.0.1/32 via 10.9.0.1 dev mgmt0"),
        (BRIDGE, SHADOW, "10.1.0.0/25 dev docker0", "ip addr del 10.1.0.100/25 dev docker0"),
    ],
)
def test_a_route_that_shadows_the_subnet_is_the_cause_where_connections_fail(
    other: Any, routes: Any, line: str, command: str
) -> None:
    nodes = _shadowed(other, routes=routes)
    astray = {"interface": other.name}
    works = judged("NET003", nodes, pairs("out", "h2", **astray))
    assert states_of(works)[0] == ("warn", "h2")
    assert f"by {other.name}, not by the chosen eth0: its route {line} comes before 10.1.0.0/24" in str(works)
    assert command in works.findings[0].remedies[0].commands
    change = _on("h1", "h2", **CUT, **astray)
    assert ("NET003", "fail", "h2") in codes_told(nodes, change)
    assert not [pair for pair in codes_told(nodes, change) if pair[0] == "NET006"]


def test_policy_rules_that_send_from_the_chosen_interface_make_a_stray_route_harmless() -> None:
    assert judged("NET003", _shadowed(MGMT, routes=STRAY)).state is State.OK


@pytest.mark.parametrize(
    ("others", "routes"),
    [
        ([], [NEAR]),
        ([MGMT], [NEAR, route("0.0.0.0/0", "mgmt0", "10.9.0.1")]),
        ([nic("eth1", "10.1.0.9/24")], [route("10.1.0.0/24", "eth1"), NEAR]),  # NET011
        ([nic("br0", "10.7.0.1/24", kind="bridge", members=["eth0"])], [route("10.1.0.0/25", "br0"), NEAR]),
        ([MGMT], [route("10.1.0.128/25", "mgmt0"), NEAR]),  # no peer is there
    ],
)
def test_routes_that_lead_no_peer_astray_are_fine(others: Any, routes: Any) -> None:
    assert verdict("NET003", *_shadowed(*others, routes=routes)).state is State.OK


@pytest.mark.parametrize(("members", "state"), [(["eth0"], "ok"), ([], "warn")])
def test_an_address_on_a_bridge_over_a_card_is_sound_where_connections_pass(
    members: list[str], state: str
) -> None:
    """NCCL leaves br0 for its last choice, and the job's own network is the one that br0 is in."""
    mgmt = {f"h{i}": nic("mgmt0", f"10.9.0.{i}/24") for i in (1, 2, 3)}
    nodes = [node(name, LO, nic("eth0", f"10.1.0.{name[1]}/24"), mgmt[name], routes=[NEAR]) for name in mgmt]
    bridge = nic("br0", "10.1.0.2/24", kind="bridge", members=members)
    nodes[1] = node("h2", LO, mgmt["h2"], nic("eth0"), bridge, routes=[route("10.1.0.0/24", "br0")])
    assert verdict("NET003", *nodes, measurements=measured(hosts(3))).state.value == state


@pytest.mark.parametrize(
    ("outcome", "source", "state"),
    [("silent", "10.9.0.2", "fail"), ("silent", "10.1.0.2", "unknown"), ("silent", "", "unknown"),
     ("refused", "10.9.0.2", "unknown")],
)  # fmt: skip
def test_a_detour_to_node_rank_0_is_certain_where_the_kernel_was_seen_to_take_it(
    outcome: Any, source: str, state: str
) -> None:
    met = Meeting(
        endpoint="10.1.0.1:29500", told_by="options", outcome=outcome, node_rank=1, addresses=["10.1.0.1"],
        sources=[source], detail="no answer",
    )  # fmt: skip
    machine = node("h2", LO, nic("eth0", "10.1.0.2/24"), MGMT, routes=STRAY)
    judgement = verdict("RUN010", machine, job=Job(launcher="join", nodes_asked=2, meeting=met))
    assert judgement.state.value == state
    words = "10.1.0.1 goes by mgmt0: eth0 is in 10.1.0.0/24, but the kernel's route is 10.1.0.0/25 dev mgmt0"
    assert words in [evidence.value for evidence in judgement.findings[0].evidence]
    if state == "fail":
        assert "by mgmt0, not by eth0, in whose subnet it is: its route 10.1.0.0/25 dev mgmt0" in str(judgement)
        assert "ip route del 10.1.0.0/25 dev mgmt0" in judgement.findings[0].remedies[0].commands


def test_a_detour_stands_before_what_is_slow_by_it() -> None:
    slow = Verdict(code="BEN004", title="", state=State.FAIL)
    warned = Verdict(code="NET003", title="", state=State.WARN)
    assert [entry.code for entry in causes_first([slow, warned])] == ["NET003", "BEN004"]


# MAC addresses

MACS = {f"h{i}": f"02:42:0a:01:00:0{i}" for i in (1, 2, 3)}


def _with_macs(kind: Any = "physical", **macs: str) -> list[Any]:
    addresses = MACS | macs
    return [
        node(name, LO, nic("eth0", f"10.1.0.{i}/24", mac=addresses[name], kind=kind), DOCKER)
        for i, name in enumerate(("h1", "h2", "h3"), 1)
    ]


def test_two_nodes_with_one_mac_address_are_told() -> None:
    nodes = _with_macs(h3=MACS["h2"])
    judgement = judged("NET010", nodes, _on("h2", "h3", **CUT))
    assert states_of(judgement) == [("fail", "h2"), ("fail", "h3")]
    assert (
        f"eth0 of h2 has the MAC address {MACS['h2']}, and so has h3 in the same subnet"
        in judgement.findings[0].what
    )
    assert "ip link set dev eth0 address 02:00:0a:01:00:03" in judgement.findings[1].remedies[0].commands
    assert verdict("NET010", *nodes).state is State.FAIL
    assert codes_told(nodes, _on("h2", "h3", **CUT)) == {("NET010", "fail", "h2"), ("NET010", "fail", "h3")}


@pytest.mark.parametrize("kind", ["bridge", "macvlan", "ipoib", "tunnel"])
def test_kinds_of_interface_that_may_have_one_mac_everywhere(kind: Any) -> None:
    nodes = [nic("eth0", f"10.1.0.{i}/24", mac=MACS["h1"], kind=kind) for i in (1, 2)]
    assert (
        verdict("NET010", *[node(f"h{i}", LO, interface) for i, interface in enumerate(nodes)]).state is State.OK
    )


def test_one_mac_is_fine_where_the_nodes_reach_each_other_or_no_frame_passes_between_them() -> None:
    assert judged("NET010", _with_macs(h3=MACS["h2"])).state is State.OK
    other = node("h2", LO, nic("eth0", "10.2.0.2/24", mac=MACS["h1"]))
    assert verdict("NET010", _with_macs()[0], other).state is State.OK
    assert verdict("NET010", *_with_macs(h2="00:00:00:00:00:00", h3="00:00:00:00:00:00")).state is State.OK


def _entries(*wrong: str, permanent: bool = False) -> Change:
    """h1 does not reach h2 and finds that MAC there; all other entries are true."""

    def change(a: str, b: str) -> dict[str, Any]:
        mac = wrong[0] if (a, b) == ("h1", "h2") else MACS[b]
        lost = CUT if {a, b} == {"h1", "h2"} else {}
        return {**lost, "neighbour": Neighbour(mac=mac, interface="eth0", permanent=permanent)}

    return change


def test_a_permanent_entry_with_another_mac_is_the_cause_on_its_node() -> None:
    change = _entries("02:00:00:00:00:99", permanent=True)
    assert codes_told(_with_macs(), change) == {("NET006", "fail", "h1")}
    finding = judged("NET006", _with_macs(), change).findings[0]
    assert "h1 has a permanent neighbour entry that sends 10.1.0.2 (h2) to" in finding.what
    assert "ip neigh del 10.1.0.2 dev eth0" in finding.remedies[0].commands


@pytest.mark.parametrize(
    ("mac", "whose"), [(MACS["h3"], "that of h3"), ("02:00:00:00:00:99", "of no node of this job")]
)
def test_another_machine_that_answers_for_an_address_is_told(mac: str, whose: str) -> None:
    assert codes_told(_with_macs(), _entries(mac)) == {("NET006", "fail", "h2")}
    finding = judged("NET006", _with_macs(), _entries(mac)).findings[0]
    assert (
        f"another machine answers for 10.1.0.2, the address of h2: h1 found the MAC address {mac}" in finding.what
    )
    assert whose in finding.what


def test_entries_explain_nothing_where_all_is_well_or_the_wire_shows_no_true_mac() -> None:
    cloud = Neighbour(mac="12:34:56:78:9a:bc", interface="eth0", permanent=False)
    everywhere = pairs("both", "h1", "h2", "h3", neighbour=cloud)
    assert judged("NET006", _with_macs(), everywhere).state is State.OK
    cut = judged("NET006", _with_macs(), lambda a, b: {**everywhere(a, b), **(CUT if "h1" in (a, b) else {})})
    assert cut.state is State.FAIL
    assert "MAC" not in str(cut)
    true = judged("NET006", _with_macs(), _entries(MACS["h2"]))
    assert "MAC" not in str(true)


def test_a_written_entry_for_node_rank_0_is_shown_to_who_cannot_join() -> None:
    entry = Neighbour(mac="02:00:00:00:00:99", interface="eth0", permanent=True)
    met = Meeting(
        endpoint="10.1.0.1:29500", told_by="options", outcome="silent", node_rank=1, addresses=["10.1.0.1"],
        neighbours={"10.1.0.1": entry}, detail="no answer",
    )  # fmt: skip
    machine = node("h2", LO, nic("eth0", "10.1.0.2/24"), routes=[NEAR])
    judgement = verdict("RUN010", machine, job=Job(launcher="join", nodes_asked=2, meeting=met))
    assert judgement.state is State.UNKNOWN
    assert "ip neigh del 10.1.0.1 dev eth0" in str(judgement)


def test_the_neighbours_of_proc_net_arp() -> None:
    text = (
        "IP address       HW type     Flags       HW address            Mask     Device\n"
        "10.1.0.2         0x1         0x2         02:42:0A:01:00:02     *        eth0\n"
        "10.1.0.3         0x1         0x6         02:42:0a:01:00:03     *        eth0\n"
        "10.1.0.4         0x1         0x0         00:00:00:00:00:00     *        eth0\n"
        "10.1.0.5         0x1         2\nx 0x1 0xzz a b c\n"
    )
    assert parsed_neighbours(text) == {
        "10.1.0.2": Neighbour(mac="02:42:0a:01:00:02", interface="eth0", permanent=False),
        "10.1.0.3": Neighbour(mac="02:42:0a:01:00:03", interface="eth0", permanent=True),
    }


# The address that gloo tells


def _six(*bad: tuple[str, str], outcome: Any = "timed_out") -> Change:
    """Each node's own name resolves to IPv6 first; connections to it fail in some pairs."""

    def change(a: str, b: str) -> dict[str, Any]:
        connect = (
            Connect(outcome=outcome) if (a, b) in bad else Connect(outcome="refused", detail="Connection refused")
        )
        return {"by_name": ByName(address=f"2001:db8::{b[1:]}", connect=connect)}

    return change


def test_an_address_of_gloo_that_nobody_reaches_is_told_though_another_one_passes() -> None:
    assert judged("NET006", hosts(3), _six()).state is State.OK
    judgement = judged("NET006", hosts(3), _six(("h1", "h2"), ("h3", "h2")))
    assert states_of(judgement)[0] == ("fail", "h2")
    assert "h2 and h1,h3 reach each other at 10.1.0.2, but not at 2001:db8::2" in judgement.findings[
        0
    ].what.replace("h[1,3]", "h1,h3")
    assert "export GLOO_SOCKET_IFNAME=eth0" in judgement.findings[0].remedies[0].commands


def test_two_nodes_are_one_finding() -> None:
    judgement = judged("NET006", hosts(2), _six(("h1", "h2"), ("h2", "h1")))
    assert [finding.where.peer for finding in judgement.findings if finding.state is State.FAIL] == ["h1"]


def test_a_job_that_does_not_use_gloo_is_not_told_of_its_address() -> None:
    lost = _six(("h1", "h2"), ("h2", "h1"))
    judgement = judged("NET006", hosts(2), lost, job=Job(nodes_asked=2, backend="nccl"))
    assert judgement.state is State.OK


def test_an_address_that_does_not_pass_either_way_is_one_cause() -> None:
    both = lambda a, b: {**_six((a, b))(a, b), **CUT}  # noqa: E731
    assert (
        len([finding for finding in judged("NET006", hosts(2), both).findings if finding.state is State.FAIL]) == 1
    )


# A link that is down, or comes and goes


def _left_with_mgmt(**state: Any) -> list[Node]:
    """Three hosts with a card for management each, of which h3's link to the job's network is in this state."""
    return [
        node(
            f"h{i}",
            LO,
            nic("eth0", f"10.1.0.{i}/24", **(state if i == 3 else {})),
            nic("mgmt0", f"10.9.0.{i}/24"),
            routes=[route("10.1.0.0/24", "eth0")] * (i < 3 or "up" not in state)
            + [route("10.9.0.0/24", "mgmt0"), route("0.0.0.0/0", "mgmt0", "10.9.0.254")],
            own=f"10.1.0.{i}",
        )
        for i in (1, 2, 3)
    ]


@pytest.mark.parametrize("state", [{"running": False}, {"up": False, "running": False}])
@pytest.mark.parametrize("downs", [0, 4])
def test_a_link_that_is_down_is_named_and_nobody_is_sent_elsewhere(state: dict[str, bool], downs: int) -> None:
    nodes, job = _left_with_mgmt(**state), Job(nodes_asked=3, backend="gloo")
    watched = Interruptions(node="h3", seconds=60.0, links=[LinkEvents(name="eth0", downs=downs)])
    ran = Measurements(interruptions=[watched] if downs else [])
    (finding,) = verdict("NET003", *nodes, job=job, measurements=ran).findings
    assert (finding.where.node, finding.where.device, finding.state) == ("h3", "eth0", State.FAIL)
    assert ("lost its link 4 times" in finding.what) is bool(downs)
    assert not verdict("NET005", *nodes, job=job, measurements=ran).findings
    for code in ("NET001", "NET002", "NET003", "NET005", "NET010", "NET013"):
        for finding in verdict(code, *nodes, job=job, measurements=ran).findings:
            assert not [line for mend in finding.remedies for line in mend.commands if "mgmt0" in line]


def test_a_name_that_leads_to_another_network_is_still_reported() -> None:
    nodes = _left_with_mgmt()
    elsewhere = node(
        "h3", LO, nic("eth0", "10.1.0.3/24"), nic("ib9", "10.7.0.3/24", running=False), own="10.7.0.3"
    )
    judgement = verdict("NET005", *nodes[:2], elsewhere, job=Job(nodes_asked=3, backend="gloo"))
    assert [name for _, name in states_of(judgement)] == ["h3"]
