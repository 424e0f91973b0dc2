"""Rule about the way from every node to every other, as subnets and routes tell it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from ncclcheck.probes.facts import Cluster, Unread, at
from ncclcheck.reports import lan
from ncclcheck.reports.findings import Finding, State, Where, admin, fail, fine, note, seen, unknown, warn, you
from ncclcheck.reports.fold import fold_names
from ncclcheck.reports.rule import NothingToJudge, rule

_NEEDS = ("network.interfaces",)


class _Outcome(IntEnum):
    """How a node sends to a subnet, the worst first."""

    NONE = 0
    UNREAD = 1
    ELSEWHERE = 2
    GATEWAY = 3
    LINK = 4


@rule(
    "NET003",
    "the chosen interfaces of all nodes share a subnet, or are routed to each other",
    worst=State.FAIL,
    needs=_NEEDS,
    at_least=2,
    between_machines=True,
)
def shared_network(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether every node can send from the interface that it would use to that of every other node.

    ## Why it matters
    If one node stands in another subnet without a route, nothing is said anywhere: plain torchrun and NCCL wait
    in init until a time-out, half an hour by default. A route through another card than the chosen one
    means that the job runs over a network that nobody meant, often a 1 Gb/s management network.

    ## How we know
    The subnet of the chosen address, and the routes of the node's main table (longest prefix, lowest metric).
    No route is a failure, a route through another interface a warning, one through a gateway a note: it is
    routed, but nothing here proves that it arrives. Policy rules (ip-rule(8)) are not seen.

    ## Fix
    - **you** name the interfaces that share a network, all names in one list:
      `export NCCL_SOCKET_IFNAME="=eno1,eth0"`.
    - **admin** an address in the common subnet, or a route; compare `ip route get ADDRESS` on both nodes.

    ## Source
    NVIDIA/nccl#286, NVIDIA/nccl#1581; horovod/horovod#310; ip-route(8).
    """
    links = lan.links(cluster)
    if len(links) < 2:
        raise NothingToJudge("fewer than two nodes have an interface to use (NET001)")
    lonely = [link for link in links if lan.is_loopback(link.address)]
    yield from (_on_loopback(link) for link in lonely)
    subnets = _subnets([link for link in links if link not in lonely])
    if len(subnets) == 1 and not lonely:
        yield fine(Where(), f"all {len(links)} nodes are in {subnets[0].network}")
    if len(subnets) > 1:
        yield from _between(_Ways(cluster), subnets)


@dataclass
class _Subnet:
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

    def __str__(self) -> str:
        return f"{self.network} ({fold_names(link.node for link in self.links)})"


def _subnets(links: list[lan.Link]) -> list[_Subnet]:
    """The largest first: where two do not reach each other, the smaller one is the odd one out."""
    found: dict[lan.IPNetwork, _Subnet] = {}
    for link in links:
        found.setdefault(link.network, _Subnet(link.network, [])).links.append(link)
    ordered = sorted(found.values(), key=lambda subnet: -len(subnet.links))
    for place, subnet in enumerate(ordered):
        subnet.place = place
    return ordered


class _Ways:
    """How nodes reach subnets. Nodes with equal routes do it alike and are asked once: nodes may be thousands."""

    def __init__(self, cluster: Cluster) -> None:
        facts = {node.name: at(node, "network.routes") for node in cluster.nodes}
        self.unread = {name: fact for name, fact in facts.items() if isinstance(fact, Unread)}
        self._routes = {node.name: lan.Routes(node) for node in cluster.nodes}
        self._alike: dict[int, list[list[lan.Link]]] = {}
        self._answers: dict[tuple[str, int], tuple[_Outcome, str]] = {}

    def alike(self, subnet: _Subnet) -> list[list[lan.Link]]:
        """The nodes of a subnet, those of equal routes together."""
        if subnet.place not in self._alike:
            groups: dict[object, list[lan.Link]] = {}
            for link in subnet.links:
                key = (link.interface.name, link.node in self.unread, self._routes[link.node].signature)
                groups.setdefault(key, []).append(link)
            self._alike[subnet.place] = list(groups.values())
        return self._alike[subnet.place]

    def way(self, link: lan.Link, subnet: _Subnet, other: _Subnet) -> tuple[_Outcome, str]:
        """The worst of the ways of a node in `subnet` to both ends of the other, and where it leads."""
        key = (link.node, other.place)
        if key not in self._answers:
            self._answers[key] = min(self._way(link, subnet, other.version, end) for end in other.ends)
        return self._answers[key]

    def _way(self, link: lan.Link, subnet: _Subnet, version: int, peer: int) -> tuple[_Outcome, str]:
        if version == subnet.version and peer in subnet.span:
            return _Outcome.LINK, link.interface.name
        way = self._routes[link.node].way(version, peer)
        if way is None:
            return (_Outcome.UNREAD if link.node in self.unread else _Outcome.NONE), ""
        if way.interface != link.interface.name.partition(":")[0]:
            return _Outcome.ELSEWHERE, way.interface
        return (_Outcome.GATEWAY, way.gateway) if way.gateway else (_Outcome.LINK, way.interface)

    def tells(self, subnet: _Subnet, other: _Subnet) -> bool:
        """Whether a missing way is told from this side: the smaller one, unless only the larger one lacks it."""
        back = any(self.way(links[0], other, subnet)[0] is _Outcome.NONE for links in self.alike(other))
        return subnet.place > other.place or not back


def _between(ways: _Ways, subnets: list[_Subnet]) -> Iterator[Finding]:
    gateways: list[str] = []
    for subnet in subnets:
        for links in ways.alike(subnet):
            found = [(other, *ways.way(links[0], subnet, other)) for other in subnets if other is not subnet]
            blocked = [
                other for other, outcome, _ in found if outcome is _Outcome.NONE and ways.tells(subnet, other)
            ]
            astray = [(other, leads) for other, outcome, leads in found if outcome is _Outcome.ELSEWHERE]
            gateways += [leads for _, outcome, leads in found if outcome is _Outcome.GATEWAY]
            unread = any(outcome is _Outcome.UNREAD for _, outcome, _ in found)
            for link in links:
                if blocked:
                    yield _no_route(link, subnet, blocked)
                if astray:
                    yield _elsewhere(link, *astray[0])
                if unread:
                    yield _unread(link, ways.unread[link.node])
    if gateways:
        yield _routed(subnets, gateways)


def _on_loopback(link: lan.Link) -> Finding:
    return fail(
        Where(node=link.node, device=link.interface.name),
        f"the job would use {link.interface.name} ({link.address}), which no other node can reach",
        why="Loopback ends inside the machine; the other nodes wait for this one until a time-out.",
        owner="job",
        evidence=[seen("chosen interface", f"{link.interface.name} {link.address}")],
        fix=[
            you("Name the interface of the job's network.", "ip -br addr", 'export NCCL_SOCKET_IFNAME="=eth0"'),
            admin("Where there is no other, bring one up.", "ip link set dev eth0 up"),
        ],
    )


def _no_route(link: lan.Link, subnet: _Subnet, blocked: list[_Subnet]) -> Finding:
    other = blocked[0]
    more = f" and {len(blocked) - 1} more subnets" if len(blocked) > 1 else ""
    draw = len(subnet.links) == len(other.links)
    against = f" ({len(subnet.links)} against {len(other.links)}: no majority)" if draw else ""
    peer = other.links[0]
    return fail(
        Where(node=link.node, device=link.interface.name, peer=peer.node),
        f"{link.interface.name} is in {link.network} and has no route to {other}{more}{against}",
        why="The ranks of these nodes cannot connect to each other; NCCL and torchrun wait without a word.",
        owner="node",
        evidence=[
            seen(link.node, f"{link.interface.name} {link.address}, {link.network}"),
            seen(peer.node, f"{peer.interface.name} {peer.address}, {peer.network}"),
        ],
        fix=[
            you(
                "See which interfaces share a subnet, and name them, all names in one list.",
                "ip -br addr",
                f'export NCCL_SOCKET_IFNAME="={_names(link, peer)}"',
            ),
            admin("Give it an address in the common subnet, or a route.", f"ip route get {peer.address}"),
        ],
    )


def _names(*links: lan.Link) -> str:
    return ",".join(sorted({link.interface.name for link in links}))


def _elsewhere(link: lan.Link, other: _Subnet, leads: str) -> Finding:
    peer = other.links[0]
    return warn(
        Where(node=link.node, device=link.interface.name, peer=peer.node),
        f"its way to {other} leaves by {leads}, not by the chosen {link.interface.name}",
        why="The job runs over another network than the chosen one, often a slow one for management.",
        owner="node",
        evidence=[seen("routes", f"to {peer.address} by {leads}")],
        fix=[
            you("Choose the interface that leads there.", f'export NCCL_SOCKET_IFNAME="={leads}"'),
            admin("Give the chosen interface the route.", f"ip route get {peer.address}"),
        ],
    )


def _routed(subnets: list[_Subnet], gateways: list[str]) -> Finding:
    shown = ", ".join(str(subnet) for subnet in subnets[:4]) + (", ..." if len(subnets) > 4 else "")
    return note(
        Where(),
        f"{len(subnets)} subnets, routed to each other, not yet proved: {shown}",
        why="A route says where packets are sent, not that they arrive.",
        evidence=[seen("routes", f"by the gateways {', '.join(sorted(set(gateways))[:4])}")],
    )


def _unread(link: lan.Link, fact: Unread) -> Finding:
    return unknown(
        Where(node=link.node),
        f"its routes could not be read: {fact.why}",
        why="It is in another subnet than other nodes, and may or may not be routed to them.",
        evidence=[seen("routes", f"{fact.kind}: {fact.why}")],
    )
