"""The subnets of a job's network, and how nodes send from one to the other by their routes."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from ncclcheck.probes.facts import Address, Cluster, Interface, KernelRoute, Node, Unread, at, value_or
from ncclcheck.reports.subjects.links.reached import Reached, reached
from ncclcheck.reports.subjects.nccl import lan, led_astray
from ncclcheck.reports.text.words.fold import fold_names

_ANSWERED = ("reachable", "stale", "delay", "probe")  # states of a neighbour entry that has an address
_MOST_EQUAL = 8  # racks of one size are no draw: each is asked only where few stand against each other


class SubnetOutcome(IntEnum):
    """How a node sends to a subnet, the worst first."""

    NONE = 0
    UNREAD = 1
    ELSEWHERE = 2
    GATEWAY = 3
    LINK = 4


@dataclass
class Subnet:
    """The nodes of one subnet. place: 0 is the largest one.

    Of several of one size, doubts: what speaks against it being the right one, the weightiest first. remark: what
    speaks for it.
    """

    network: lan.IPNetwork
    links: list[lan.LanPlace]
    place: int = 0
    doubts: tuple[bool, bool, int] = (False, False, 0)
    remark: str = ""

    @cached_property
    def ends(self) -> set[int]:
        """The lowest and the highest address stand for all."""
        addresses = [int(ipaddress.ip_address(link.address)) for link in self.links]
        return {min(addresses), max(addresses)}

    @cached_property
    def version(self) -> int:
        """4 or 6."""
        return self.network.version

    @cached_property
    def span(self) -> range:
        """All addresses of the subnet, as numbers."""
        return range(int(self.network.network_address), int(self.network.broadcast_address) + 1)

    @cached_property
    def nodes(self) -> frozenset[str]:
        """The names of its nodes."""
        return frozenset(link.node for link in self.links)

    def __str__(self) -> str:
        return f"{self.network} ({fold_names(link.node for link in self.links)})"


def subnets_of(cluster: Cluster, links: list[lan.LanPlace]) -> list[Subnet]:
    """The largest first: where two do not reach each other, the smaller one is the odd one out.

    Of equally large ones a prefix that is wider than another over the same addresses comes last (a forgotten
    netmask gives 10.0.0.1 a /8), unless the machines of the narrower one are on its wire; then the endpoint's
    comes first, then those in which others have an address too.
    """
    by_network: dict[lan.IPNetwork, Subnet] = {}
    for link in links:
        by_network.setdefault(link.network, Subnet(link.network, [])).links.append(link)
    subnets = sorted(by_network.values(), key=lambda subnet: -len(subnet.links))
    first = len(subnets[0].links) if subnets else 0
    equal = [subnet for subnet in subnets if len(subnet.links) == first]
    if 1 < len(equal) <= _MOST_EQUAL:
        _decide(cluster, equal)
        subnets = sorted(equal, key=lambda subnet: subnet.doubts) + subnets[len(equal) :]
    for place, subnet in enumerate(subnets):
        subnet.place = place
    return subnets


def _decide(cluster: Cluster, equal: list[Subnet]) -> None:
    """What speaks against each of some equally large subnets, and what for it in words."""
    endpoint = [ipaddress.ip_address(text) for text in _endpoint(cluster)]
    reach = reached(cluster)
    for subnet in equal:
        near = [other for other in equal if other is not subnet and _overlap(subnet, other)]
        # Where machines of the narrower one answer on the wire of the wider one, the narrower one is wrong.
        wide = [other for other in near if subnet.network.prefixlen < other.network.prefixlen]
        narrow = [other for other in near if subnet.network.prefixlen > other.network.prefixlen]
        doubted = any(not answers(reach, subnet.nodes, other.nodes) for other in wide) or any(
            answers(reach, other.nodes, subnet.nodes) for other in narrow
        )
        is_endpoints = any(address in subnet.network for address in endpoint)
        also = [
            node.name
            for node in cluster.nodes
            if node.name not in subnet.nodes and address_in(node, subnet.network)
        ]
        subnet.doubts = (doubted, not is_endpoints, -len(also))
        subnet.remark = (
            "where the endpoint is" if is_endpoints else f"where {fold_names(also)} is too" if also else ""
        )


def answers(reach: Reached | None, askers: Collection[str], asked: Collection[str]) -> bool:
    """Whether a node found the MAC address of another on its own wire, though no connection passed."""
    ways = [reach.seen[a, b].way for a in askers for b in asked if reach and (a, b) in reach.seen]
    return any(
        hop.address == way.address and hop.state in _ANSWERED
        for way in ways
        if isinstance(way, KernelRoute)
        for hop in way.hops
    )


def _endpoint(cluster: Cluster) -> list[str]:
    meeting = cluster.job.meeting
    return [text.partition("%")[0] for text in meeting.addresses] if meeting else []


def _overlap(subnet: Subnet, other: Subnet) -> bool:
    return subnet.version == other.version and subnet.network.overlaps(other.network)


def address_in(node: Node, network: lan.IPNetwork) -> tuple[Interface, Address] | None:
    """An address of a node in this subnet, on an interface that is up."""
    for interface in lan.interfaces(node):
        for address, own in lan.global_networks(interface) if lan.is_usable(interface) else ():
            if own == network:
                return interface, address
    return None


class Ways:
    """How nodes reach subnets. Nodes with equal routes do it alike and are asked once: nodes may be thousands."""

    def __init__(self, cluster: Cluster) -> None:
        facts = {node.name: at(node, "network.routes") for node in cluster.nodes}
        self.unread = {name: fact for name, fact in facts.items() if isinstance(fact, Unread)}
        self._routes = {node.name: lan.Routes(node) for node in cluster.nodes}
        self.nodes = {node.name: node for node in cluster.nodes}
        self.reached = reached(cluster)
        self.astray = led_astray.astray_nodes(cluster)
        self._alike: dict[int, list[list[lan.LanPlace]]] = {}
        self._answers: dict[tuple[str, int], tuple[SubnetOutcome, str]] = {}

    def alike(self, subnet: Subnet) -> list[list[lan.LanPlace]]:
        """The nodes of a subnet, those of equal routes together."""
        if subnet.place not in self._alike:
            groups: dict[object, list[lan.LanPlace]] = {}
            for link in subnet.links:
                key = (link.interface.name, link.node in self.unread, self._routes[link.node].signature)
                groups.setdefault(key, []).append(link)
            self._alike[subnet.place] = list(groups.values())
        return self._alike[subnet.place]

    def way(self, link: lan.LanPlace, subnet: Subnet, other: Subnet) -> tuple[SubnetOutcome, str]:
        """The worst of the ways of a node in `subnet` to both ends of the other, and where it leads."""
        key = (link.node, other.place)
        if key not in self._answers:
            self._answers[key] = min(self._way(link, subnet, other.version, end) for end in other.ends)
        return self._answers[key]

    def _way(self, link: lan.LanPlace, subnet: Subnet, version: int, peer: int) -> tuple[SubnetOutcome, str]:
        if version == subnet.version and peer in subnet.span:
            return SubnetOutcome.LINK, link.interface.name
        way = self._routes[link.node].way(version, peer)
        if way is None:
            return (SubnetOutcome.UNREAD if link.node in self.unread else SubnetOutcome.NONE), ""
        if way.interface != link.interface.name.partition(":")[0]:
            return SubnetOutcome.ELSEWHERE, way.interface
        return (SubnetOutcome.GATEWAY, way.gateway) if way.gateway else (SubnetOutcome.LINK, way.interface)

    def passes(self, link: lan.LanPlace, other: Subnet) -> bool | None:
        """Whether connections from a node to the other subnet pass; None where that was not tried."""
        return self.reached.passes(link.node, other.nodes) if self.reached else None

    def second(self, link: lan.LanPlace, other: Subnet) -> tuple[Interface, Address] | None:
        """Another address of a node, in the other subnet."""
        return address_in(self.nodes[link.node], other.network)

    def goes_there(self, link: lan.LanPlace, other: Subnet, leads: str) -> bool:
        """Whether a way by another interface is well: by a rule for its sender, or a bridge there."""
        return self.goes_by_itself(link, other) or self._by_a_bridge(link, other, leads)

    def _by_a_bridge(self, link: lan.LanPlace, other: Subnet, leads: str) -> bool:
        """Whether its address there is on a bridge with ports, as for virtual machines, and connections pass."""
        second = self.second(link, other)
        if second is None or second[0].name != leads or second[0].kind != "bridge":
            return False
        return bool(value_or(second[0].members, [])) and self.passes(link, other) is True

    def goes_by_itself(self, link: lan.LanPlace, other: Subnet) -> bool:
        """Whether the kernel was seen to send there from the chosen interface after all, by a policy rule."""
        peers = [(self.reached.seen.get((link.node, name)) if self.reached else None) for name in other.nodes]
        return bool(self.passes(link, other)) and {p.interface for p in peers if p} == {link.interface.name}

    def tells(self, subnet: Subnet, other: Subnet) -> bool:
        """Whether a missing way is told from this side: the smaller one, unless only the larger one lacks it."""
        back = any(self.way(links[0], other, subnet)[0] is SubnetOutcome.NONE for links in self.alike(other))
        return subnet.place > other.place or not back

    def tells_of_detour(self, subnet: Subnet, other: Subnet) -> bool:
        """Whether a way by another interface is told from this side: a fault of the smaller one explains both."""
        back = min(self.way(links[0], other, subnet)[0] for links in self.alike(other))
        return subnet.place > other.place or back > SubnetOutcome.ELSEWHERE
