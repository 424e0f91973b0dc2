"""The subnets of a job's network, and how nodes send from one to the other by their routes."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from ncclcheck.probes.facts import Cluster, Unread, at
from ncclcheck.reports import lan
from ncclcheck.reports.fold import fold_names
from ncclcheck.reports.reached import reached


class Outcome(IntEnum):
    """How a node sends to a subnet, the worst first."""

    NONE = 0
    UNREAD = 1
    ELSEWHERE = 2
    GATEWAY = 3
    LINK = 4


@dataclass
class Subnet:
    """The nodes of one subnet. place: 0 is the largest one."""

    network: lan.IPNetwork
    links: list[lan.Link]
    place: int = 0

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


def subnets_of(links: list[lan.Link]) -> list[Subnet]:
    """The largest first: where two do not reach each other, the smaller one is the odd one out."""
    found: dict[lan.IPNetwork, Subnet] = {}
    for link in links:
        found.setdefault(link.network, Subnet(link.network, [])).links.append(link)
    ordered = sorted(found.values(), key=lambda subnet: -len(subnet.links))
    for place, subnet in enumerate(ordered):
        subnet.place = place
    return ordered


class Ways:
    """How nodes reach subnets. Nodes with equal routes do it alike and are asked once: nodes may be thousands."""

    def __init__(self, cluster: Cluster) -> None:
        facts = {node.name: at(node, "network.routes") for node in cluster.nodes}
        self.unread = {name: fact for name, fact in facts.items() if isinstance(fact, Unread)}
        self._routes = {node.name: lan.Routes(node) for node in cluster.nodes}
        self.nodes = {node.name: node for node in cluster.nodes}
        self.found = reached(cluster)
        self._alike: dict[int, list[list[lan.Link]]] = {}
        self._answers: dict[tuple[str, int], tuple[Outcome, str]] = {}

    def alike(self, subnet: Subnet) -> list[list[lan.Link]]:
        """The nodes of a subnet, those of equal routes together."""
        if subnet.place not in self._alike:
            groups: dict[object, list[lan.Link]] = {}
            for link in subnet.links:
                key = (link.interface.name, link.node in self.unread, self._routes[link.node].signature)
                groups.setdefault(key, []).append(link)
            self._alike[subnet.place] = list(groups.values())
        return self._alike[subnet.place]

    def way(self, link: lan.Link, subnet: Subnet, other: Subnet) -> tuple[Outcome, str]:
        """The worst of the ways of a node in `subnet` to both ends of the other, and where it leads."""
        key = (link.node, other.place)
        if key not in self._answers:
            self._answers[key] = min(self._way(link, subnet, other.version, end) for end in other.ends)
        return self._answers[key]

    def _way(self, link: lan.Link, subnet: Subnet, version: int, peer: int) -> tuple[Outcome, str]:
        if version == subnet.version and peer in subnet.span:
            return Outcome.LINK, link.interface.name
        way = self._routes[link.node].way(version, peer)
        if way is None:
            return (Outcome.UNREAD if link.node in self.unread else Outcome.NONE), ""
        if way.interface != link.interface.name.partition(":")[0]:
            return Outcome.ELSEWHERE, way.interface
        return (Outcome.GATEWAY, way.gateway) if way.gateway else (Outcome.LINK, way.interface)

    def passes(self, link: lan.Link, other: Subnet) -> bool | None:
        """Whether connections from a node to the other subnet pass; None where that was not tried."""
        return self.found.passes(link.node, other.nodes) if self.found else None

    def goes_by_itself(self, link: lan.Link, other: Subnet) -> bool:
        """Whether the kernel was seen to send there from the chosen interface after all, by a policy rule."""
        peers = [(self.found.seen.get((link.node, name)) if self.found else None) for name in other.nodes]
        return bool(self.passes(link, other)) and {p.interface for p in peers if p} == {link.interface.name}

    def tells(self, subnet: Subnet, other: Subnet) -> bool:
        """Whether a missing way is told from this side: the smaller one, unless only the larger one lacks it."""
        back = any(self.way(links[0], other, subnet)[0] is Outcome.NONE for links in self.alike(other))
        return subnet.place > other.place or not back

    def tells_of_detour(self, subnet: Subnet, other: Subnet) -> bool:
        """Whether a way by another interface is told from this side: a fault of the smaller one explains both."""
        back = min(self.way(links[0], other, subnet)[0] for links in self.alike(other))
        return subnet.place > other.place or back > Outcome.ELSEWHERE
