"""Why a node does not reach an address, by what its own kernel says of the way there."""

from __future__ import annotations

import errno
import socket
import struct
import threading
from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Address,
    Connect,
    Hop,
    Job,
    KernelRoute,
    Meeting,
    NameServer,
    Node,
    PolicyRule,
    Resolver,
    Volley,
    known,
    replace,
)
from ncclcheck.probes.machine.net import netlink, network, resolver
from ncclcheck.reports.judgement.findings import Finding, Verdict
from tests.helpers.clusters import LO, nic, node, states_of, verdict
from tests.helpers.reach_clusters import DROPPED, GOOD, Change, hosts, measured
from tests.helpers.trees import tree

PEER = "10.1.0.1"
_ETH0 = nic("eth0", "10.1.0.2/24")


def _way(*hops: Hop, **more: Any) -> KernelRoute:
    given = {"kind": "unicast", "source": "10.1.0.2", "destination": "10.1.0.0/24", "table": "main"} | more
    return KernelRoute(address=PEER, hops=list(hops), **given)


def _run010(local: Node, *ways: KernelRoute, outcome: Any = "silent", **more: Any) -> Any:
    met = Meeting(
        endpoint=f"{PEER}:29500", told_by="--rdzv-endpoint", outcome=outcome, node_rank=1, addresses=[PEER],
        ways=list(ways), detail="no answer", **more,
    )  # fmt: skip
    return verdict("RUN010", local, job=Job(launcher="join", nodes_asked=2, meeting=met))


def _finding(local: Node, *ways: KernelRoute, **more: Any) -> Finding:
    judged: Verdict = _run010(local, *ways, **more)
    assert states_of(judged) == [("fail", "b")]
    return judged.findings[0]


def _b(*interfaces: Any, **more: Any) -> Node:
    made = node("b", LO, *interfaces)
    return replace(made, network=replace(known(made.network), **more)) if more else made


def test_a_gateway_that_does_not_answer_is_named_and_not_the_target() -> None:
    way = _way(Hop(interface="eth0", address="10.9.0.250", state="failed"), routers=["10.9.0.1"])
    finding = _finding(_b(nic("eth0", "10.9.0.2/24")), way)
    assert "10.9.0.250 on eth0 answers no ARP" in finding.what
    assert finding.remedies[0].commands[1] == "ip route replace 10.1.0.0/24 via 10.9.0.1 dev eth0   # on b"
    assert not any(
        "replace" in line
        for line in _finding(_b(nic("eth0", "10.9.0.2/24")), replace(way, routers=[])).remedies[0].commands
    )


@pytest.mark.parametrize("state", ["reachable", "stale", "delay", ""])
def test_a_gateway_that_answers_explains_nothing(state: Any) -> None:
    way = _way(Hop(interface="eth0", address="10.9.0.250", state=state))
    assert states_of(_run010(_b(nic("eth0", "10.9.0.2/24")), way)) == [("unknown", "b")]


def test_of_two_next_hops_the_dead_one_is_named_and_the_other_kept() -> None:
    hops = [Hop(interface="eth0", address="10.9.0.1", state="reachable"),
            Hop(interface="eth0", address="10.9.0.250", state="failed")]  # fmt: skip
    finding = _finding(_b(nic("eth0", "10.9.0.2/24")), _way(*hops))
    assert "has 2 next hops, and 10.9.0.250" in finding.what
    assert "ip route replace 10.1.0.0/24 via 10.9.0.1 dev eth0" in finding.remedies[0].commands[1]


def test_a_port_of_a_bridge_with_an_address_of_its_own() -> None:
    bridge = nic("br0", kind="bridge", members=["eth0"])
    finding = _finding(_b(_ETH0, bridge), _way(Hop(interface="eth0", address=PEER, state="failed")))
    assert "eth0 is a port of the bridge br0 and has 10.1.0.2 itself" in finding.what
    assert finding.where.device == "eth0"


def test_a_policy_rule_that_leads_into_a_tunnel_is_taken_away_by_its_priority() -> None:
    rule = PolicyRule(version=4, priority=77, selector="from all to 10.1.0.0/24", action="lookup 7",
                      destination="10.1.0.0/24")  # fmt: skip
    way = _way(Hop(interface="tun0", address=PEER), destination="0.0.0.0/0", table="7", source="172.30.0.9")
    finding = _finding(_b(_ETH0, nic("tun0", "172.30.0.9/32", kind="tunnel"), rules=[rule]), way)
    assert "by tun0, a tunnel, not by eth0, in whose subnet 10.1.0.0/24 it is" in finding.what
    assert finding.remedies[0].commands == ["ip rule del pref 77   # on b"]


def test_an_overlay_whose_subnet_holds_the_address_is_what_the_job_means() -> None:
    overlay = nic("wg0", "10.1.0.2/24", kind="tunnel")
    assert states_of(_run010(_b(overlay), _way(Hop(interface="wg0", address=PEER)))) == [("unknown", "b")]


def test_another_sender_than_the_interface_has() -> None:
    local = _b(_ETH0, nic("mgmt0", "10.8.0.2/24"))
    finding = _finding(local, _way(Hop(interface="eth0", address=PEER, state="reachable"), source="10.8.0.2"))
    assert "from 10.8.0.2, the address of mgmt0" in finding.what
    assert finding.remedies[0].commands == ["ip route replace 10.1.0.0/24 dev eth0 src 10.1.0.2   # on b"]
    on_loopback = _b(_ETH0, nic("lo", "10.8.0.2/32", kind="loopback"))
    way = _way(Hop(interface="eth0", address=PEER), source="10.8.0.2")
    assert states_of(_run010(on_loopback, way)) == [("unknown", "b")]


def test_a_cable_that_is_out() -> None:
    local = _b(nic("eth0", "10.1.0.2/24", running=False))
    assert "eth0, which is up and has no link" in _finding(local, _way(Hop(interface="eth0", address=PEER))).what


def test_ipv6_that_is_off_and_an_address_that_is_a_duplicate() -> None:
    six = "2001:db8::1"
    off = _b(replace(_ETH0, ipv6_off=True))
    assert (
        "IPv6 is turned off on eth0"
        in _finding(off, KernelRoute(address=six, error="x"), outcome="unrouted", kept="route").what
    )
    address = Address(family="ipv6", address="2001:db8::2", prefix=64, state="duplicate")
    way = KernelRoute(
        address=six, kind="unicast", destination="2001:db8::/64", hops=[Hop(interface="eth0", address=six)]
    )
    twin = _b(replace(_ETH0, addresses=[address]))
    assert "dadfailed" in _finding(twin, way, outcome="unrouted", kept="resources").what
    both = _b(replace(_ETH0, addresses=[address, replace(address, address="2001:db8::3", state="")]))
    assert states_of(_run010(both, way)) == [("unknown", "b")]


def test_a_machine_that_refuses_is_reached_whatever_the_way() -> None:
    way = _way(Hop(interface="tun0", address=PEER), destination="0.0.0.0/0")
    local = _b(_ETH0, nic("tun0", "172.30.0.9/32", kind="tunnel"))
    assert states_of(_run010(local, way, outcome="refused")) == [("unknown", "b")]


def test_names_that_lead_elsewhere() -> None:
    named = Resolver(name="n0", seconds=0.0, files=[PEER], known={"10.1.0.7": ["n7"], PEER: ["n0"]})
    finding = _finding(_b(_ETH0), outcome="refused", resolver=named, elsewhere=["10.1.0.7"])
    assert "n0 resolves here to 10.1.0.1 (by /etc/hosts), and node rank 0 answers at 10.1.0.7" in finding.what
    assert finding.remedies[0].commands == ["--rdzv-endpoint 10.1.0.7:29500   # on every node"]
    mute = Resolver(name="n0", seconds=6.0, servers=[NameServer(address="10.1.0.53", answered=False)])
    assert (
        "the name server 10.1.0.53 of /etc/resolv.conf does not answer"
        in _finding(_b(_ETH0), outcome="unresolved", resolver=mute).what
    )
    knows = replace(mute, servers=[NameServer(address="10.1.0.53", answered=True)])
    assert states_of(_run010(_b(_ETH0), outcome="unresolved", resolver=knows)) == [("unknown", "b")]
    alias = replace(named, beside=["n9"])
    doubt = _run010(_b(_ETH0), outcome="refused", resolver=alias)
    assert states_of(doubt) == [("unknown", "b")]
    assert "which /etc/hosts also calls n9" in doubt.findings[0].what


def test_the_kernel_tells_the_way_to_itself_and_to_nowhere() -> None:
    way = netlink.way_to("127.0.0.1")
    assert (way.kind, way.source, way.hops[0].interface) == ("local", "127.0.0.1", "lo")
    assert netlink.way_to("::1").kind in ("local", "")
    assert netlink.way_to("127.0.0.1", "127.0.0.1").source == "127.0.0.1"


def test_a_kernel_that_has_no_route_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(number: int) -> Any:
        def ask(*_: object) -> Any:
            raise OSError(number, "x")

        return ask

    for number, kind in ((errno.ENETUNREACH, ""), (errno.EACCES, "prohibit"), (errno.EHOSTUNREACH, "unreachable")):
        monkeypatch.setattr(netlink, "_route_to", refuses(number))
        assert netlink.way_to(PEER).kind == kind
    monkeypatch.setattr(netlink, "_route_to", refuses(errno.EPERM))
    with pytest.raises(OSError, match="x"):
        netlink.way_to(PEER)


def test_addresses_of_ipv6_that_are_not_used(tmp_path: Any) -> None:
    number = "20010db8000000000000000000000002"
    files = {
        "/proc/net/if_inet6": f"{number} 02 40 00 c8     eth0\nnonsense\n{number[:-1]}3 02 40 00 40     eth0\n",
        "/proc/sys/net/ipv6/conf/eth0/disable_ipv6": "1\n",
    }
    listed = [{"family": "ipv6", "address": f"2001:db8::{last}", "prefix": 64} for last in (2, 3, 4)]
    machine = tree(
        tmp_path, files, interfaces=[{"name": "eth0", "flags": ["up"], "mtu": 1500, "addresses": listed}]
    )
    interface = known(network.probe(machine).interfaces)[0]
    assert interface.ipv6_off
    assert [address.state for address in known(interface.addresses)] == ["duplicate", "tentative", ""]


def _answer(query: bytes, *addresses: str) -> bytes:
    records = b"".join(
        b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton(address) for address in addresses
    )
    return query[:2] + struct.pack(">HHHHH", 0x8180, 1, len(addresses), 0, 0) + query[12:] + records


def test_what_a_name_server_answers_is_parsed_and_nonsense_is_not_believed() -> None:
    query = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\x02n0\x00" + struct.pack(">HH", 1, 1)
    whole = _answer(query, PEER, "10.1.0.7")
    assert list(resolver._addresses(whole, 1)) == [PEER, "10.1.0.7"]
    for end in range(12, len(whole)):
        assert set(resolver._addresses(whole[:end], 1)) <= {PEER, "10.1.0.7"}
    for noise in (b"\xff" * 64, bytes(64), whole[:12] + b"\xc0" * 100):
        list(resolver._addresses(noise, 1))


def test_a_name_server_that_is_mute_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "_ANSWER_S", 0.05)
    met = threading.Event()

    def silent(*_: object) -> list[str]:
        met.set()
        raise TimeoutError

    monkeypatch.setattr(resolver, "_answers", silent)
    servers = resolver._asked("n0", "nameserver 192.0.2.1\nsearch a.example\n")
    assert servers == [NameServer(address="192.0.2.1", answered=False)]
    assert met.is_set()


def _net006(change: Change, own: Connect | None = None) -> Verdict:
    """h1, h2 and h3 at 10.1.0.1, .2, .3 tried each other. own: what h2 says of its own address."""
    nodes = hosts(3)
    told_of = measured(nodes, change)
    reach = [replace(reach, own=own) if own and reach.node == "h2" else reach for reach in told_of.reach]
    return verdict("NET006", *nodes, measurements=replace(told_of, reach=reach))


def test_a_failed_pair_is_explained_by_the_way_of_its_sender() -> None:
    way = KernelRoute(
        address=PEER, kind="unicast", source="10.1.0.2", destination="10.1.0.0/24", table="main",
        hops=[Hop(interface="eth0", address="10.1.0.250", state="failed")],
    )  # fmt: skip

    def change(a: str, b: str) -> dict[str, Any]:
        if a == "h2":
            return {"connect": DROPPED, "way": way}
        return {"connect": DROPPED} if b == "h2" else {}

    judged = _net006(change)
    assert states_of(judged) == [("fail", "h2")]
    assert "h2 does not reach h[1,3]: its route 10.1.0.0/24 via 10.1.0.250" in judged.findings[0].what


def test_a_dead_next_hop_of_two_explains_what_is_answered_late_in_both_directions() -> None:
    hops = [
        Hop(interface="eth0", address="10.1.0.251", state="reachable"),
        Hop(interface="eth0", address="10.1.0.250", state="failed"),
    ]
    way = KernelRoute(
        address=PEER, kind="unicast", source="10.1.0.2", destination="10.1.0.0/24", table="main", hops=hops
    )

    def change(a: str, b: str) -> dict[str, Any]:
        late = {"volley": Volley(opened=8, late=5)} if "h2" in (a, b) else {}
        return {**late, "way": way} if a == "h2" else late

    judged = _net006(change)
    assert states_of(judged) == [("fail", "h2")]
    assert "does not always reach" in judged.findings[0].what


def test_a_node_that_does_not_reach_itself() -> None:
    judged = _net006(lambda _, __: {}, DROPPED)
    assert states_of(judged) == [("fail", "h2")]
    assert "cannot connect to its own address 10.1.0.2" in judged.findings[0].what
    assert states_of(_net006(lambda _, __: {}, GOOD)) == [("ok", None)]


def test_an_address_on_another_network_of_node_0_is_no_wrong_name() -> None:
    """A host with two cards has an address in each: if it answers by the second, the first way fails."""
    local = _b(_ETH0, nic("mgmt0", "10.8.0.2/24"))
    named = Resolver(name="n0", seconds=0.0, files=[PEER], known={PEER: ["n0"]})
    doubt = _run010(local, outcome="silent", resolver=named, elsewhere=["10.8.0.1"])
    assert states_of(doubt) == [("unknown", "b")]
    assert "node rank 0 runs, for it answers at 10.8.0.1 by another network" in doubt.findings[0].what
