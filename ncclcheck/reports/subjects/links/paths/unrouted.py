"""Why a node has no route to an address, from its own interfaces and routes, and what gives it one."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import Address, Interface, Node, Unread, at
from ncclcheck.reports.judgement.findings import Remedy, admin
from ncclcheck.reports.subjects.addresses import one_wire, prefixes
from ncclcheck.reports.subjects.links.filters import kept
from ncclcheck.reports.subjects.nccl import lan

_USUAL = {4: 24, 6: 64}  # bits of a subnet of hosts, where nothing tells them

_IP = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Unrouted:
    """The cause in words, the interface that it is about, and the fix."""

    words: str
    device: str | None
    fix: list[Remedy]


def cause(node: Node, peer: _IP) -> Unrouted:
    """The likeliest cause of a route that is not there."""
    listed = at(node, "network.interfaces")
    others = (
        [] if isinstance(listed, Unread) else [interface for interface in listed if interface.kind != "loopback"]
    )
    near = [
        (interface, address)
        for interface in others
        for address, net in lan.global_networks(interface)
        if net.version == peer.version
    ]
    return _refused(node, peer) or _down(others, peer) or _narrow(node, near, peer) or _missing(node, near, peer)


def _refused(node: Node, peer: _IP) -> Unrouted | None:
    """A rule or a route of this node that refuses it, where there is one."""
    refusal = kept.by_route(node, str(peer))
    return Unrouted(refusal.words, None, list(refusal.fix)) if refusal.evidence else None


def _down(others: list[Interface], peer: _IP) -> Unrouted | None:
    """An interface is down: the one in whose subnet the peer is, else any that is not a bridge or a tunnel."""
    down = [interface for interface in others if interface.up is False]
    inside = [interface for interface in down if any(peer in net for _, net in lan.global_networks(interface))]
    cards = [interface for interface in down if interface.kind not in ("bridge", "tunnel", "virtual")]
    if not (interfaces := inside or cards):
        return None
    name = interfaces[0].name
    words = f"{name} is down" + (f", and {peer} is in its subnet" if inside else "")
    return Unrouted(
        words, name, [admin("Bring the link up.", f"ip link set dev {name} up", f"ip route get {peer}")]
    )


def _narrow(node: Node, near: list[tuple[Interface, Address]], peer: _IP) -> Unrouted | None:
    """The peer is in the usual subnet around an address of ours, but not in the one that we have."""
    usual = _USUAL[peer.version]
    for interface, address in near:
        around = ipaddress.ip_network(f"{address.address}/{usual}", strict=False)
        if usual < address.prefix < around.max_prefixlen and peer in around:
            return Unrouted(
                f"{interface.name} has {address.address}/{address.prefix}, so that {peer} is not in its subnet",
                interface.name,
                [prefixes.put_right(node.name, interface.name, address, usual)],
            )
    return None


def _missing(node: Node, near: list[tuple[Interface, Address]], peer: _IP) -> Unrouted:
    shown = ", ".join(f"{card.name} {own.address}/{own.prefix}" for card, own in near) or "none of its family"
    words = f"no route of this node leads there; its addresses are {shown}"
    if not near:
        return Unrouted(
            words, None, [admin("Give this node an address of that family.", "ip -br addr", "ip route")]
        )
    interface, address = near[0]
    network = ipaddress.ip_network(f"{peer}/{max(address.prefix, _USUAL[peer.version])}", strict=False)
    return Unrouted(words, interface.name, offers(node, interface.name, address, network, "node rank 0", [node]))


def offers(
    node: Node, device: str, address: Address, network: lan.IPNetwork, peer: str, nodes: Iterable[Node]
) -> list[Remedy]:
    """A way into the subnet of a peer: by a router, and where both are on one wire by an address in it."""
    return [
        _by_router(node, device, address, network),
        *one_wire.offer(nodes, node, device, address, network, peer),
    ]


def _by_router(node: Node, device: str, address: Address, network: lan.IPNetwork) -> Remedy:
    on = f"# on {node.name}"
    add = f"ip route add {network} via {{}} dev {quote(device)}   {on}"
    if known := _gateway(node, device):
        return admin(
            f"Give {node.name} a route to {network} by the gateway of its other routes, here and in the network "
            "configuration; where the other side has no route back, one there too.",
            add.format(quote(known)),
        )
    text = f"If a router joins the two subnets, give {node.name} a route by its address on this wire"
    if not (likely := _first_or_last(address)):
        return admin(f"{text}, here and in the network configuration.", f"ip route   {on}")
    return admin(
        f"{text}, most often the first one of the subnet, here and in the network configuration; see first "
        f"that it answers: `ping {likely}`.",
        add.format(likely),
    )


def _first_or_last(address: Address) -> str:
    """Where a router is by custom; empty in a subnet that has no room for one."""
    own = ipaddress.ip_network(f"{address.address}/{address.prefix}", strict=False)
    ends = [str(own[1]), str(own[-2])] if own.num_addresses >= 4 else []
    return next((end for end in ends if end != address.address), "")


def _gateway(node: Node, device: str) -> str:
    routes = at(node, "network.routes")
    listed = [] if isinstance(routes, Unread) else routes
    return next((route.gateway for route in listed if route.gateway and route.interface == device), "")
