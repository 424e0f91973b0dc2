"""Nodes that the endpoint fails, and that say so by another address; NAT, trunks and links that are half dead."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ncclcheck.launch.agents import Events
from ncclcheck.launch.joining import join_protocol
from ncclcheck.launch.joining.hearsay import sound
from ncclcheck.launch.joining.meeting import MeetingPoint
from ncclcheck.launch.joining.trust import sealed
from ncclcheck.probes.facts import (
    Arrival,
    Connect,
    Counters,
    Echoes,
    Filter,
    Hop,
    Interruptions,
    Job,
    KernelRoute,
    LinkEvents,
    Meeting,
    NameServer,
    Neighbour,
    Node,
    Resolver,
    Volley,
    known,
    replace,
)
from ncclcheck.reports.judgement.findings import Finding
from tests.helpers.clusters import LO, nic, node, route, states_of, verdict
from tests.helpers.reach_clusters import CUT, DROPPED, Change, hosts, judged, measured, pairs
from tests.launch.joining.test_meet import Guest, _connect

NODES = hosts(3)
_DOCKER = Filter(
    family="ip", table="nat", chain="DOCKER", hook="prerouting", does=["dnat"],
    rule="tcp dport 29500 dnat to 172.17.0.9:29500",
)  # fmt: skip


def _unreached(*addresses: str, outcome: Any = "silent", **more: Any) -> Meeting:
    given: dict[str, Any] = {
        "detail": "no answer",
        "node_rank": 1,
        "told_by": "--node-rank and --rdzv-endpoint",
    } | more
    return Meeting(endpoint=f"{given.pop('host', 'h1')}:29500", outcome=outcome, addresses=[*addresses], **given)


def _came(unreached: Meeting | None, *names: str) -> Job:
    arrivals = [
        Arrival(outcome="joined", node_rank=int(name[1:]) - 1, name=name, address="10.9.0.9", unreached=unreached)
        for name in names
    ]
    endpoint = unreached.endpoint if unreached else "h1:29500"
    told_by = "--node-rank and --rdzv-endpoint"
    met = Meeting(endpoint=endpoint, told_by=told_by, outcome="open", arrivals=arrivals)
    return Job(launcher="join", nodes_asked=3, meeting=met)


def _run010(job: Job, nodes: list[Node] = NODES, change: Change | None = None) -> list[Finding]:
    return verdict("RUN010", *nodes, job=job, measurements=measured(nodes, change)).findings


def _filtered(nodes: list[Node], name: str, *chains: Filter) -> list[Node]:
    return [
        replace(member, network=replace(known(member.network), filters=[*chains] if member.name == name else []))
        for member in nodes
    ]


def test_a_name_that_leads_elsewhere_is_put_right_by_the_address_of_the_jobs_network() -> None:
    names = Resolver(name="h1", seconds=0.0, servers=[NameServer(address="10.9.0.53", answered=True)])
    (finding,) = _run010(_came(_unreached("10.1.0.200", resolver=names), "h2"))
    assert (finding.state.value, finding.where.node) == ("fail", "h2")
    assert "h1 resolves on h2 to 10.1.0.200 (by its name service), an address of no node" in finding.what
    assert "echo '10.1.0.1 h1' >> /etc/hosts   # on h2" in finding.remedies[1].commands[0]


def test_a_port_that_node_0_leads_elsewhere_is_said_once_for_all() -> None:
    (finding,) = _run010(_came(_unreached("10.1.0.1"), "h2", "h3"), _filtered(NODES, "h1", _DOCKER))
    assert (finding.where.node, finding.where.peer) == ("h1", "h[2-3]")
    assert "dnat to 172.17.0.9:29500" in finding.what
    assert finding.remedies[0].commands == ["--rdzv-endpoint h1:29511   # on every node"]


def test_a_rule_of_another_port_is_none() -> None:
    other = replace(_DOCKER, rule="tcp dport 295001 dnat to 172.17.0.9:80")
    change = pairs("both", "h2", connect=DROPPED)
    (finding,) = _run010(_came(_unreached("10.1.0.1"), "h2"), _filtered(NODES, "h1", other), change)
    assert finding.where.node == "h2"
    assert "dnat" not in finding.what


def test_only_that_port_of_node_0_is_dead() -> None:
    (finding,) = _run010(_came(_unreached("10.1.0.1"), "h2"))
    assert "what comes in for port 29500 of h1 is dropped or led elsewhere, though other ports" in finding.what


def test_other_ports_of_another_address_prove_nothing() -> None:
    (finding,) = _run010(_came(_unreached("fd00::1"), "h2"))
    assert "other ports" not in finding.what
    assert finding.state.value == "fail"  # node rank 0 runs, so that the way is what fails


def test_whose_address_a_literal_endpoint_is_says_run005() -> None:
    job = _came(_unreached("10.1.0.3", host="10.1.0.3", outcome="refused"), "h2")
    assert not _run010(job)
    assert states_of(verdict("RUN005", *NODES, job=job, measurements=measured(NODES))) == [("fail", "h1")]
    nobodys = _came(_unreached("203.0.113.1", host="203.0.113.1"), "h2")
    assert states_of(verdict("RUN005", *NODES, job=nobodys, measurements=measured(NODES))) == [("fail", "h1")]


def test_a_name_of_another_node_that_node_0_resolves_alike_is_no_ones_wrong_name() -> None:
    """The endpoint names node 1: a line for /etc/hosts with node 0's address under node 1's name would do harm."""
    there = _unreached("10.1.0.2", host="h2", outcome="refused", resolver=Resolver(name="h2", seconds=0.0))
    job = _came(there, "h2")
    assert job.meeting is not None
    alike = replace(job, meeting=replace(job.meeting, addresses=["10.1.0.2"]))
    assert not _run010(alike)
    other = replace(job, meeting=replace(job.meeting, addresses=["10.1.0.1"]))
    assert [finding.where.node for finding in _run010(other)] == ["h2"]


def test_a_filter_that_drops_neighbour_discovery_is_the_cause() -> None:
    drop = Filter(family="inet", table="t", chain="c", hook="input", does=["drop"], rule="l4proto ipv6-icmp drop")
    way = KernelRoute(
        address="fd00::1", kind="unicast", hops=[Hop(interface="eth0", address="fd00::1", state="incomplete")]
    )
    job = _came(_unreached("fd00::1", ways=[way]), "h2")
    (finding,) = _run010(job, _filtered(NODES, "h2", drop))
    assert "drops ICMPv6 (chain inet t c (hook input): l4proto ipv6-icmp drop)" in finding.what
    assert (
        finding.remedies[0].commands[0].startswith("nft insert rule inet t c icmpv6 type '{ nd-neighbor-solicit")
    )
    (without,) = _run010(job, _filtered(NODES, "h2"))
    assert "ICMPv6" not in without.what


def test_no_answer_on_the_wire_is_no_firewall() -> None:
    hops = [Hop(interface="eth0", address="10.1.0.1", state="failed")]
    way = KernelRoute(
        address="10.1.0.1", kind="unicast", source="10.1.0.2", destination="10.1.0.0/24", table="main", hops=hops
    )
    (finding,) = _run010(_came(_unreached("10.1.0.1", ways=[way]), "h2"), change=pairs("both", "h2", **CUT))
    commands = [line for remedy in finding.remedies for line in remedy.commands]
    assert any("ip -s link show eth0" in line for line in commands)
    assert not any("nft" in line or "iptables" in line for line in commands)


def test_who_came_by_the_endpoint_is_not_judged() -> None:
    assert verdict("RUN010", *NODES, job=_came(None, "h2", "h3")).reason == "this is node rank 0's own report"


# NAT


def _nat(a: str, b: str) -> dict[str, Any]:
    if a == "h2":
        return {"source": "10.0.3.2", "seen_as": "10.1.0.22"}
    return {"connect": Connect(outcome="unreachable", kept="route"), "address": "10.0.3.2"} if b == "h2" else {}


def _behind() -> list[Node]:
    return hosts(3, h2=nic("eth0", "10.0.3.2/24"))


def test_a_container_behind_nat_is_the_one_to_change() -> None:
    (finding,) = (
        candidate for candidate in judged("NET003", _behind(), _nat).findings if candidate.state.value == "fail"
    )
    assert finding.where.node == "h2"
    assert "behind NAT: it gives the others 10.0.3.2 (eth0)" in finding.what
    assert "come from 10.1.0.22" in finding.what
    commands = " ".join(line for remedy in finding.remedies for line in remedy.commands)
    assert "--network host" in commands
    assert "route add" not in commands
    assert "addr del" not in commands
    assert "/etc/hosts" not in commands
    assert not [
        candidate for candidate in judged("NET013", _behind(), _nat).findings if candidate.state.value != "ok"
    ]


def test_a_node_that_others_reach_is_not_behind_nat() -> None:
    def change(a: str, b: str) -> dict[str, Any]:
        return _nat(a, b) if a == "h2" else {}

    assert not any("behind NAT" in finding.what for finding in judged("NET003", _behind(), change).findings)


def test_a_public_address_that_nobody_reaches_is_not_behind_nat() -> None:
    nodes = hosts(3, h2=nic("eth0", "8.8.3.2/24"))

    def change(a: str, b: str) -> dict[str, Any]:
        return _nat(a, b) | ({"source": "8.8.3.2"} if a == "h2" else {})

    assert not any("behind NAT" in finding.what for finding in judged("NET003", nodes, change).findings)


# A trunk with a dead member

FOUR = hosts(4)


def _across(a: str, b: str) -> bool:
    return (a in ("h1", "h2")) != (b in ("h1", "h2"))


def _half_lost(a: str, b: str) -> dict[str, Any]:
    if not _across(a, b):
        return {"volley": Volley(opened=8, late=0)}
    return {"connect": DROPPED} if (a, b) == ("h3", "h1") else {"volley": Volley(opened=8, late=4)}


def test_a_dead_member_of_a_trunk_is_no_fault_of_a_node() -> None:
    (finding,) = judged("NET006", FOUR, _half_lost).findings
    assert (finding.state.value, finding.where.node) == ("fail", None)
    assert "between h[1-2] and h[3-4] a part of the connections is lost" in finding.what


@pytest.mark.parametrize(
    "change",
    [
        lambda _a, _b: {"volley": Volley(opened=8, late=0)},
        lambda a, b: {"volley": Volley(opened=8, late=2 if _across(a, b) else 0)},  # a loss of 1 %
        lambda a, b: CUT if _across(a, b) else {},  # all of it is cut
        lambda a, b: {"volley": Volley(opened=8, late=5 if "h4" in (a, b) else 0)},  # one node
        lambda _a, _b: {"volley": Volley(opened=8, late=5)},  # everywhere
    ],
)
def test_no_trunk(change: Change) -> None:
    assert not any("trunk between" in finding.what for finding in judged("NET006", FOUR, change).findings)


def test_two_nodes_show_no_trunk() -> None:
    judgement = judged("NET006", hosts(2), pairs("both", "h1", volley=Volley(opened=8, late=4)))
    assert not any("trunk between" in finding.what for finding in judgement.findings)


def _by_ports(*of: str, same: int = 8) -> Change:
    return lambda a, b: {"volley": Volley(opened=8, late=4, again=8, same=same)} if {a, b} <= {*of} else {}


@pytest.mark.parametrize(
    ("count", "change", "node"),
    [
        (2, _by_ports("h1", "h2"), "h1"),  # the link between them
        (3, lambda a, b: _by_ports(a, b)(a, b) if "h2" in (a, b) else {}, "h2"),
    ],
)
def test_connections_that_fail_by_their_ports_take_a_dead_member(count: int, change: Change, node: str) -> None:
    (finding,) = judged("NET006", hosts(count), change).findings
    assert (finding.state.value, finding.where.node) == ("fail", node)
    assert "by their ports: one member" in finding.what
    assert not any("nft insert" in line for remedy in finding.remedies for line in remedy.commands)


@pytest.mark.parametrize("same", [0, 5, 7])
def test_others_late_the_second_time_are_a_limit(same: int) -> None:
    findings = judged("NET006", hosts(2), _by_ports("h1", "h2", same=same)).findings
    assert not any("by their ports" in finding.what for finding in findings)


# A link that is dead in one direction


def _deaf(took: int, *, held_before: bool = False) -> list[Finding]:
    entry = Neighbour(mac="02:00:00:00:00:02", interface="eth0", permanent=False, held_before=held_before)

    def change(a: str, b: str) -> dict[str, Any]:
        if a == "h2":
            return {**CUT, "connect": replace(DROPPED, kept="neighbour")}
        return {**CUT, "neighbour": entry} if b == "h2" else {}

    all_of_it = measured(NODES, change)
    count = Counters(packets=5, errors=0, drops=0, bytes_in=took, bytes_out=168, seconds=1.0)
    reach = [
        replace(reach, counters=count, beside=count) if reach.node == "h2" else reach for reach in all_of_it.reach
    ]
    return verdict("NET006", *NODES, measurements=replace(all_of_it, reach=reach)).findings


def test_a_node_that_is_heard_and_hears_nothing() -> None:
    (finding,) = _deaf(35)
    assert "h2 is heard and hears nothing" in finding.what
    assert not any("nft" in line for remedy in finding.remedies for line in remedy.commands)


def test_an_old_entry_does_not_show_that_a_node_is_heard() -> None:
    (finding,) = _deaf(35, held_before=True)
    both = "h2 is cut off from all 2 others, in both directions: h2 hears nothing: it finds no MAC"
    assert finding.what.startswith(both)
    assert "is heard" not in finding.what
    assert not any("nft" in line for remedy in finding.remedies for line in remedy.commands)


def _not_delivered(took: int) -> list[Finding]:
    """The others know its MAC address and send to it; it knows theirs."""

    def change(a: str, b: str) -> dict[str, Any]:
        entry = Neighbour(mac=f"02:00:00:00:00:0{b[1]}", interface="eth0", permanent=False)
        lost = Echoes(sent=300, arrived=0, returned=0)
        return {**CUT, "neighbour": entry, "echoes": lost} if "h2" in (a, b) else {}

    all_of_it = measured(NODES, change)
    count = Counters(packets=300, errors=0, drops=0, bytes_in=took, bytes_out=57_500, seconds=1.0)
    reach = [
        replace(reach, counters=count, beside=count) if reach.node == "h2" else reach for reach in all_of_it.reach
    ]
    macs = [node(name, LO, nic("eth0", f"10.1.0.{i}/24", mac=f"02:00:00:00:00:0{i}"))
            for i, name in enumerate(("h1", "h2", "h3"), 1)]  # fmt: skip
    return [
        finding
        for finding in verdict("NET006", *macs, measurements=replace(all_of_it, reach=reach)).findings
        if finding.where.node == "h2"
    ]


def test_what_does_not_come_to_the_card_is_no_filter_of_the_host() -> None:
    (finding,) = _not_delivered(84)
    assert "nothing that the others send to h2 arrives at its interface: eth0 received 168 bytes" in finding.what
    assert not any("nft" in line for remedy in finding.remedies for line in remedy.commands)
    (finding,) = _not_delivered(20_000)
    assert "arrives at its interface" not in finding.what


@pytest.mark.parametrize("asked", [True, False])
def test_nodes_that_only_the_switch_keeps_apart(asked: bool) -> None:
    lost = {**CUT, "connect": replace(DROPPED, kept="neighbour" if asked else "")}
    findings = judged("NET006", NODES, lambda a, b: lost if {a, b} == {"h2", "h3"} else {}).findings
    if not asked:
        assert not any("the switch keeps" in candidate.what for candidate in findings)
        return
    (finding,) = findings
    assert finding.what.startswith("the switch keeps h[2-3] apart: not even ARP passes between them, either way")
    assert (finding.where.node, finding.where.peer) == ("h2", "h3")


def test_a_whole_private_vlan_is_one_finding() -> None:
    lost = {**CUT, "connect": replace(DROPPED, kept="neighbour")}
    findings = judged("NET006", hosts(4), lambda a, b: lost if "h1" not in (a, b) else {}).findings
    (finding,) = findings
    assert "keeps h[2-4] apart" in finding.what
    assert "(3 pairs)" in finding.what


def test_a_node_that_receives_is_not_deaf() -> None:
    (finding,) = _deaf(5000)
    assert "hears nothing" not in finding.what


def test_a_link_that_went_down_stands_before_what_it_cut() -> None:
    before = measured(NODES)
    after = measured(NODES, pairs("both", "h3", **CUT))
    watched = Interruptions(node="h3", seconds=60.0, links=[LinkEvents(name="eth0", downs=16)])
    all_of_it = replace(before, reach_after=after.reach, interruptions=[watched])
    (finding,) = (
        candidate
        for candidate in verdict("NET006", *NODES, measurements=all_of_it).findings
        if candidate.state.value == "fail"
    )
    assert finding.what.startswith("eth0 of h3 lost its link 16 times while the job ran")
    quiet = verdict("NET006", *NODES, measurements=replace(all_of_it, interruptions=[]))
    assert not any("lost its link" in candidate.what for candidate in quiet.findings)


# What is said between the nodes


@pytest.fixture
def point() -> Iterator[tuple[MeetingPoint, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    meeting = MeetingPoint("127.0.0.1", [port], 2, "id", name="a", command="env", events=Events())
    yield meeting, port
    meeting.done(0, "over")


def _joined(port: int) -> Guest:
    guest = Guest(_connect(port)).ask()
    assert isinstance(guest.answer(), join_protocol.Welcome)
    return guest


def _until(point: MeetingPoint, wanted: object) -> None:
    end = time.monotonic() + 5
    while time.monotonic() < end and [arrival.unreached for arrival in point.arrivals] != [wanted]:
        time.sleep(0.02)
    assert [arrival.unreached for arrival in point.arrivals] == [wanted]


def test_a_node_says_why_the_endpoint_failed_and_takes_it_back(point: tuple[MeetingPoint, int]) -> None:
    guest, why = _joined(point[1]), _unreached("10.1.0.1")
    guest.say(join_protocol.encode(join_protocol.CutOffNode(meeting=why)))
    _until(point[0], why)
    guest.say(join_protocol.encode(join_protocol.CutOffNode()))
    _until(point[0], None)


def test_addresses_that_are_none_end_the_conversation(point: tuple[MeetingPoint, int]) -> None:
    guest = _joined(point[1])
    guest.say(join_protocol.encode(join_protocol.CutOffNode(meeting=_unreached("$(reboot)"))))
    _until_left(point[0])


def _until_left(point: MeetingPoint) -> None:
    end = time.monotonic() + 5
    while time.monotonic() < end and point.arrivals[0].outcome != "left":
        time.sleep(0.02)
    assert (point.arrivals[0].outcome, point.arrivals[0].unreached) == ("left", None)


def test_what_is_told_of_a_way_may_be_printed() -> None:
    told_of = replace(_unreached("10.1.0.1"), detail="\x1b[2Jgone" + "x" * 500)
    assert sound(told_of).detail == ("?[2Jgone" + "x" * 500)[:128]
    with pytest.raises(ValueError, match="not appear"):
        sound(replace(told_of, elsewhere=["a; b"]))


def test_runs_without_an_id_are_told_apart_by_their_endpoint() -> None:
    assert join_protocol.place_digest("", "h1:29500") != join_protocol.place_digest("", "h2:29500")
    assert join_protocol.place_digest("job", "h1:29500") == join_protocol.place_digest("job", "10.1.0.1:29500")
    assert len(sealed.nonce()) == 32


def test_a_second_card_in_the_subnet_on_whose_wire_nobody_answers_is_the_cause() -> None:
    """And the printed fix takes its address away, whichever came first."""
    second = nic("eth1", "10.1.0.22/24")
    nodes = [
        replace(
            member,
            network=replace(known(member.network), interfaces=[*known(known(member.network).interfaces), second]),
        )
        if member.name == "h2"
        else member
        for member in NODES
    ]
    way = KernelRoute(
        address="10.1.0.1", kind="unicast", source="10.1.0.22", destination="10.1.0.0/24",
        hops=[Hop(interface="eth1", address="10.1.0.1", state="incomplete")],
    )  # fmt: skip
    (finding,) = _run010(_came(_unreached("10.1.0.1", ways=[way]), "h2"), nodes)
    assert (finding.where.node, finding.where.device) == ("h2", "eth1")
    assert "it goes by eth1, whose address 10.1.0.22/24 is in the subnet 10.1.0.0/24 of eth0 too" in finding.what
    assert finding.remedies[0].commands == [
        "ip addr del 10.1.0.22/24 dev eth1   # on h2", "ip link set dev eth1 down   # on h2",
    ]  # fmt: skip
    answered = replace(way, hops=[replace(way.hops[0], state="reachable")])
    (finding,) = _run010(_came(_unreached("10.1.0.1", ways=[answered]), "h2"), nodes)
    assert "ip addr del" not in str(finding.remedies)


def test_node_0_that_takes_a_far_node_for_near_is_the_cause_and_no_firewall() -> None:
    default = [route("0.0.0.0/0", "eth0", "10.1.0.254")]
    nodes = [
        node(f"h{i}", LO, nic("eth0", f"10.1.{9 * (i == 2)}.{i}/{8 if i == 1 else 24}"), routes=default)
        for i in (1, 2, 3)
    ]

    def cut(sender: str, other: str) -> dict[str, Any]:
        return dict(CUT) if {sender, other} == {"h1", "h2"} else {}

    (finding,) = _run010(_came(_unreached("10.1.0.1"), "h2"), nodes, cut)
    assert (finding.where.node, finding.where.peer) == ("h1", "h2")
    assert "on h1 eth0 has the prefix length /8" in finding.what
    assert (
        finding.remedies[0].commands[-1].startswith("ip addr add 10.1.0.1/24 dev eth0 && ip addr del 10.1.0.1/8")
    )
    assert "nft" not in str(finding.remedies)
