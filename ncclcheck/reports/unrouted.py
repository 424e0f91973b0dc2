"""Why a node has no route to an address, from its own interfaces and routes, and what gives it one."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from ncclcheck.probes.facts import Address, Interface, Node, Unread, at
from ncclcheck.reports import lan
from ncclcheck.reports.findings import Remedy, admin

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
    others = [] if isinstance(listed, Unread) else [one for one in listed if one.kind != "loopback"]
    near = [(one, held) for one in others for held, net in lan.global_networks(one) if net.version == peer.version]
    return _down(others, peer) or _narrow(near, peer) or _missing(node, near, peer)


def _down(others: list[Interface], peer: _IP) -> Unrouted | None:
    """An interface is down: the one in whose subnet the peer is, else any that is not a bridge or a tunnel."""
    down = [one for one in others if one.up is False]
    inside = [one for one in down if any(peer in net for _, net in lan.global_networks(one))]
    cards = [one for one in down if one.kind not in ("bridge", "tunnel", "virtual")]
    if not (found := inside or cards):
        return None
    name = found[0].name
    words = f"{name} is down" + (f", and {peer} is in its subnet" if inside else "")
    return Unrouted(
        words, name, [admin("Bring the link up.", f"ip link set dev {name} up", f"ip route get {peer}")]
    )


def _narrow(near: list[tuple[Interface, Address]], peer: _IP) -> Unrouted | None:
    """The peer is in the usual subnet around an address of ours, but not in the one that we have."""
    usual = _USUAL[peer.version]
    for one, held in near:
        around = ipaddress.ip_network(f"{held.address}/{usual}", strict=False)
        if usual < held.prefix < around.max_prefixlen and peer in around:
            return Unrouted(
                f"{one.name} has {held.address}/{held.prefix}, so that {peer} is not in its subnet",
                one.name,
                [
                    admin(
                        f"Give it the prefix length that node rank 0 has, which is most often /{usual}.",
                        f"ip addr add {held.address}/{usual} dev {one.name}",
                        f"ip addr del {held.address}/{held.prefix} dev {one.name}",
                    )
                ],
            )
    return None


def _missing(node: Node, near: list[tuple[Interface, Address]], peer: _IP) -> Unrouted:
    shown = ", ".join(f"{one.name} {held.address}/{held.prefix}" for one, held in near) or "none of its family"
    words = f"no route of this node leads there; its addresses are {shown}"
    if not near:
        return Unrouted(
            words, None, [admin("Give this node an address of that family.", "ip -br addr", "ip route")]
        )
    one, held = near[0]
    network = ipaddress.ip_network(f"{peer}/{max(held.prefix, _USUAL[peer.version])}", strict=False)
    known = _known_gateway(node, one.name)
    gateway = known or _first_of_subnet(held)
    said = "the gateway of its other routes" if known else f"{gateway} if that is the gateway there"
    return Unrouted(
        words,
        one.name,
        [
            admin(
                f"Give this node a route to that subnet, by {said}.",
                f"ip route add {network} via {gateway} dev {one.name}",
            ),
            admin("If both are on one wire, give it an address in the subnet of node rank 0.", "ip -br addr"),
        ],
    )


def _known_gateway(node: Node, device: str) -> str:
    routes = at(node, "network.routes")
    listed = [] if isinstance(routes, Unread) else routes
    return next((one.gateway for one in listed if one.gateway and one.interface == device), "")


def _first_of_subnet(held: Address) -> str:
    """By custom a router has the first address of a subnet."""
    first = str(ipaddress.ip_network(f"{held.address}/{held.prefix}", strict=False)[1])
    return "GATEWAY" if first == held.address else first
