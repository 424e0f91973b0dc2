"""A node that sends by another device, or cannot: its own kernel's words are the cause, and come first."""

from __future__ import annotations

from typing import Any

from ncclcheck.probes.facts import (
    ByName,
    Connect,
    Hop,
    Job,
    Measurements,
    Network,
    Node,
    PairTime,
    PathMtu,
    PolicyRule,
    Way,
    replace,
)
from ncclcheck.reports.judgement.findings import State
from tests.helpers.clusters import LO, nic, node, route, told
from tests.helpers.reach_clusters import CUT, Change, hosts, judged, measured

MGMT = nic("mgmt0", "10.2.0.2/24")
RULE = PolicyRule(priority=50, version=4, action="lookup 100", destination="10.1.0.1/32", selector="to it")


def _of(a: str, b: str, **facts: Any) -> Change:
    return lambda one, other: facts if (one, other) == (a, b) else {}


def _by_table_100(**more: Any) -> Change:
    hop = Hop(interface="mgmt0", address="10.1.0.1", state="reachable")
    way = Way(address="10.1.0.1", kind="unicast", destination="0.0.0.0/0", table="100", hops=[hop])
    return _of("h2", "h1", **{"interface": "mgmt0", "way": way, **more})


def _with_a_rule() -> list[Node]:
    nodes = hosts(3)
    cards = node("h2", LO, nic("eth0", "10.1.0.2/24"), MGMT)
    assert isinstance(cards.network, Network)
    nodes[1] = replace(cards, network=replace(cards.network, rules=[RULE]))
    return nodes


def test_a_way_by_a_policy_rule_is_a_detour_though_all_connections_pass() -> None:
    found = judged("NET003", _with_a_rule(), _by_table_100())
    assert told(found)[0] == ("warn", "h2")
    assert "h2 sends to h1 by mgmt0" in found.findings[0].what
    assert "to it lookup 100" in found.findings[0].what
    assert found.findings[0].remedies[0].commands == ["ip rule del pref 50   # on h2"]


def test_a_rule_that_leads_to_the_chosen_device_is_none() -> None:
    hop = Hop(interface="eth0", address="10.1.0.1", state="reachable")
    way = Way(address="10.1.0.1", kind="unicast", destination="10.1.0.0/24", table="100", hops=[hop])
    assert judged("NET003", hosts(3), _of("h2", "h1", way=way)).state is State.OK


TUNNEL = [route("10.1.0.3/32", "vx0", "10.99.0.3")]


def _through_a_tunnel(a: str, b: str) -> dict[str, Any]:
    if {a, b} != {"h2", "h3"}:
        return {}
    facts: dict[str, Any] = {"path_mtu": PathMtu(sent=1500, arrived=1400, told=1450)}
    return facts | ({"interface": "vx0"} if a == "h2" else {})


def _tunnelled(h2_to_h3: float = 0.01) -> tuple[Measurements, list[Node]]:
    nodes = hosts(3)
    h2 = node("h2", LO, nic("eth0", "10.1.0.2/24"), nic("vx0", "10.99.0.2/24", kind="tunnel"), routes=TUNNEL)
    nodes[1] = h2
    rates = {("h1", "h2"): 2.0, ("h1", "h3"): 1.5, ("h2", "h3"): h2_to_h3}
    pairs = [PairTime(a=a, b=b, bytes=2**20, a_to_b_gb_s=r, b_to_a_gb_s=2.0, latency_us=100.0)
             for (a, b), r in rates.items()]  # fmt: skip
    measurements = measured(nodes, _through_a_tunnel)
    for one in measurements.reach:
        one.peers[:] = [replace(peer, bursts=[]) if peer.interface == "vx0" else peer for peer in one.peers]
    return replace(measurements, pairs=pairs), nodes


def test_a_tunnel_that_sends_under_the_cards_address_is_named_with_what_the_job_carried() -> None:
    measurements, nodes = _tunnelled()
    found = judged("NET003", nodes, measurements=measurements)
    assert told(found)[0] == ("fail", "h2")
    assert "by vx0, not by the chosen eth0" in found.findings[0].what
    assert "carries 0.08 Gb/s in the job, where other pairs carry 16" in found.findings[0].what
    assert judged("NET007", nodes, measurements=measurements).state is State.OK


def test_a_tunnel_as_fast_as_the_rest_is_a_warning() -> None:
    measurements, nodes = _tunnelled(h2_to_h3=1.8)
    assert judged("NET003", nodes, measurements=measurements).state is State.WARN


def test_a_card_that_asks_for_no_mac_address_is_named() -> None:
    def without_arp(a: str, b: str) -> dict[str, Any]:
        if "h2" not in (a, b):
            return {}
        hop = Hop(interface="eth0", address="10.1.0.1", state="noarp")
        way = Way(address="10.1.0.1", kind="unicast", source="10.1.0.2", destination="10.1.0.0/24", hops=[hop])
        return {**CUT, **({"way": way} if a == "h2" else {})}

    found = judged("NET006", hosts(3), without_arp)
    assert told(found)[0] == ("fail", "h2")
    assert "eth0 has ARP turned off" in found.findings[0].what
    assert found.findings[0].remedies[0].commands == ["ip link set dev eth0 arp on   # on h2"]


def test_the_name_of_a_peer_leads_to_ipv6_that_is_off_here() -> None:
    nodes = hosts(2)
    nodes[1] = node("h2", LO, nic("eth0", "10.1.0.2/24", ipv6_off=True))
    unreachable = Connect(outcome="unreachable", detail="Network is unreachable")
    change = _of("h2", "h1", by_name=ByName(address="fd00::1", connect=unreachable))
    found = judged("NET006", nodes, change, job=Job(nodes_asked=2, backend="gloo"))
    assert told(found)[0] == ("fail", "h2")
    assert "IPv6 is turned off on eth0" in found.findings[0].what
    assert "sysctl -w net.ipv6.conf.all.disable_ipv6=0" in found.findings[0].remedies[1].commands[0]
