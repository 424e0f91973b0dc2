"""Routes that shadow the job's subnet: the kernel sends to a peer by another interface than the one meant."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import (
    Address,
    Cluster,
    Connect,
    Interface,
    KernelRoute,
    Node,
    Route,
    Unread,
    at,
    value_or,
)
from ncclcheck.reports.judgement.findings import Finding, Remedy, Where, admin, fail, seen, warn, you
from ncclcheck.reports.subjects.failures import held_up
from ncclcheck.reports.subjects.links.paths import own_way, two_cards
from ncclcheck.reports.subjects.links.paths.own_way import WayCause
from ncclcheck.reports.subjects.links.reached import Reached, reached
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import fold_names

_IP = ipaddress.IPv4Address | ipaddress.IPv6Address
_ANOTHER_NETWORK = "The job runs over another network than the chosen one, often a slow one for management."
_INSIDE = {"bridge", "tunnel", "virtual"}  # kinds that are rarely the network that a job means


@dataclass(frozen=True)
class Detour:
    """The route that the kernel takes, and the interface in whose subnet the address is.

    onlink: the address that gives the route to its own interface; None where somebody added the route.
    """

    route: Route
    onlink: Address | None
    meant: str
    network: lan.IPNetwork

    @property
    def line(self) -> str:
        """The route as ip-route(8) takes it."""
        by = f" via {quote(self.route.gateway)}" if self.route.gateway else ""
        metric = f" metric {self.route.metric}" if self.route.metric else ""
        return f"{quote(self.route.destination)}{by} dev {quote(self.route.interface)}{metric}"

    @property
    def evidence(self) -> str:
        """Both interfaces, and what decides between them."""
        return f"{self.meant} is in {self.network}, but the kernel's route is {self.line}"

    def fix(self, peer: str) -> list[Remedy]:
        """Take the route away, or the address that it comes from."""
        see = you("See where packets for that address go.", f"ip route get {quote(peer)}")
        if self.onlink is None:
            text = "Take the route away, here and in the network configuration."
            return [admin(text, f"ip route del {self.line}"), see]
        text = "Give that interface another subnet (Docker: `bip` in /etc/docker/daemon.json), or remove it."
        address = f"{self.onlink.address}/{self.onlink.prefix}"
        return [admin(text, f"ip addr del {quote(address)} dev {quote(self.route.interface)}"), see]


def to(node: Node, peer: _IP) -> Detour | None:
    """The detour to an address, whichever interface of this node is in its subnet."""
    listed = at(node, "network.interfaces")
    near = [
        (interface, net)
        for interface in ([] if isinstance(listed, Unread) else listed)
        if lan.is_usable(interface)
        for _, net in lan.global_networks(interface)
        if peer in net
    ]
    near.sort(key=lambda pair: (value_or(pair[0].kind, "virtual") in _INSIDE, pair[1].prefixlen))
    return _detour(node, lan.Routes(node), *near[0], peer) if near else None


def _detour(node: Node, routes: lan.Routes, meant: Interface, network: lan.IPNetwork, peer: _IP) -> Detour | None:
    """Two interfaces in one and the same subnet are none: they share it (NET011)."""
    route, device = routes.route(peer.version, int(peer)), _device(meant.name)
    if route is None or route.interface == device:
        return None
    own = [interface for interface in lan.interfaces(node) if _device(interface.name) == route.interface]
    addresses = [
        (address, net) for interface in own for address, net in lan.global_networks(interface) if peer in net
    ]
    enslaved = any(device in value_or(interface.members, []) for interface in own)
    if enslaved or any(net == network for _, net in addresses):
        return None
    return Detour(route, addresses[0][0] if addresses else None, meant.name, network)


def _device(name: str) -> str:
    return name.partition(":")[0]


def findings(cluster: Cluster, links: Sequence[lan.LanPlace]) -> Iterator[Finding]:
    """One for every route by which a node sends to peers of its own subnet from another interface."""
    nodes = {node.name: node for node in cluster.nodes}
    reach = reached(cluster)
    near: dict[lan.IPNetwork, list[lan.LanPlace]] = {}
    for link in links:
        near.setdefault(link.network, []).append(link)
    for link in links:
        yield from _by_rules(cluster, reach, nodes[link.node], link, near[link.network])
        routes, device = lan.Routes(nodes[link.node]), _device(link.interface.name)
        if all(route.interface == device for route in routes.within(link.network)):
            continue
        led: dict[Detour, list[lan.LanPlace]] = {}
        for peer in near[link.network]:
            there = ipaddress.ip_address(peer.address)
            detour = _detour(nodes[link.node], routes, link.interface, link.network, there)
            if peer is not link and detour and not _goes_by_itself(reach, link, peer):
                led.setdefault(detour, []).append(peer)
        yield from (_finding(cluster, link, detour, peers) for detour, peers in led.items())


def _by_rules(
    cluster: Cluster, reach: Reached | None, node: Node, link: lan.LanPlace, peers: list[lan.LanPlace]
) -> Iterator[Finding]:
    """The same by a table that a policy rule leads to, as the kernel was seen to send; what fails is NET006's."""
    if reach is None or link.node not in reach.odd_ways:
        return
    led: dict[str, list[tuple[lan.LanPlace, KernelRoute, WayCause]]] = {}
    for peer in peers:
        way = reach.odd_ways[link.node].get(peer.node)
        if way is None or _failed(reach, (link.node, peer.node)):
            continue
        if (cause := own_way.another_device(node, way)) and cause.device != _device(link.interface.name):
            led.setdefault(cause.device, []).append((peer, way, cause))
    for device, all_of_it in led.items():
        (first, way, cause), names = all_of_it[0], [peer.node for peer, _, _ in all_of_it]
        slow = slow_words(cluster, link.node, names)
        yield (fail if slow else warn)(
            Where(node=link.node, device=device, peer=first.node),
            f"{link.node} sends to {fold_names(names)} by {device}: {cause.words}{slow}",
            why=_ANOTHER_NETWORK,
            owner="node",
            evidence=[own_way.evidence(node, way)],
            fix=list(cause.fix),
        )


def _goes_by_itself(reach: Reached | None, link: lan.LanPlace, peer: lan.LanPlace) -> bool:
    """Whether the kernel was seen to send from the chosen interface after all, by a policy rule."""
    seen_there = reach.seen.get((link.node, peer.node)) if reach else None
    return seen_there is not None and seen_there.interface == link.interface.name


def _finding(cluster: Cluster, link: lan.LanPlace, detour: Detour, peers: list[lan.LanPlace]) -> Finding:
    reach = reached(cluster)
    pairs = [pair for peer in peers for pair in ((link.node, peer.node), (peer.node, link.node))]
    lost = [pair for pair in pairs if reach and _failed(reach, pair)]
    slow = slow_words(cluster, link.node, [peer.node for peer in peers])
    level = fail if lost or slow else warn
    leads = f"by {detour.route.interface}, not by the chosen {link.interface.name}"
    return level(
        Where(node=link.node, device=detour.route.interface, peer=peers[0].node),
        f"{link.node} sends to {fold_names(peer.node for peer in peers)} {leads}: its route {detour.line} comes "
        f"before {detour.network}" + (", and connections fail" if lost else slow),
        why="What goes out by one interface and comes back by another is dropped as forged (rp_filter), or never "
        "arrives."
        if lost
        else _ANOTHER_NETWORK,
        owner="node",
        evidence=[
            seen(f"routes of {link.node}", detour.evidence),
            *(seen("TCP connect", f"{a} to {b} fails") for a, b in lost[:2]),
            *(two_cards.filtering(link.node, link.interface) if lost else ()),
        ],
        fix=detour.fix(peers[0].address),
    )


def slow_words(cluster: Cluster, node: str, peers: Sequence[str]) -> str:
    """How slow the first of these ways is that bursts found slow; empty where none is."""
    slowness = held_up.slowness(cluster)
    for pair in ((node, peer) for peer in peers):
        if others := slowness.beside_others(pair):
            return f", and carries {slowness.rates[pair]:.2g} Gb/s, where other pairs carry {others:.2g} (median)"
        if pair not in slowness.rates and (carried := held_up.in_the_job(cluster, pair)):
            own, others = carried
            return f", and carries {own:.2g} Gb/s in the job, where other pairs carry {others:.2g} (median)"
    return ""


def _failed(reach: Reached, pair: tuple[str, str]) -> bool:
    connect = reach.seen[pair].connect if pair in reach.seen else None
    return isinstance(connect, Connect) and connect.outcome not in ("ok", "silent")
