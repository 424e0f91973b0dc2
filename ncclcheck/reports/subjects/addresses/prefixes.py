"""Prefix lengths that differ on one wire: who is taken for near and is far."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Address, Cluster, KernelRoute
from ncclcheck.reports.judgement.findings import Finding, Remedy, Where, admin, fail, seen, warn
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.subjects.nccl.ways import Subnet, SubnetOutcome, Ways, subnets_of
from ncclcheck.reports.text.words.fold import fold_names


def findings(ways: Ways, subnets: list[Subnet]) -> Iterator[Finding]:
    """One a node whose prefix length differs from that of the larger, or narrower, subnet on its wire."""
    yield from (_prefix(link, other, main, lost) for link, other, main, lost in _odd(ways, subnets))


def between(cluster: Cluster, node: str, other: str) -> Finding | None:
    """The prefix length of one of two nodes, where it is why nothing passes between them."""
    links = lan.links(cluster)
    if len(links) < 2:
        return None
    for link, subnet, main, lost in _odd(Ways(cluster), subnets_of(cluster, links)):
        if any({link.node, far.node} == {node, other} for far in lost):
            return _prefix(link, subnet, main, lost)
    return None


def _odd(ways: Ways, subnets: list[Subnet]) -> Iterator[tuple[lan.LanPlace, Subnet, Subnet, list[lan.LanPlace]]]:
    """Links of another prefix length, their subnet, the right one, and the nodes that they lose by it."""
    for other in subnets[1:]:
        mains = [main for main in subnets[: other.place] if _may_be_one_wire(main, other)]
        for link in other.links if mains else ():
            near = [main for main in mains if ways.way(link, other, main)[0] is SubnetOutcome.LINK]
            own = [main for main in near if ipaddress.ip_address(link.address) in main.network]
            if near:
                main = (own or near)[0]
                yield link, other, main, _lost_by_prefix(ways, link, main, subnets)


def _may_be_one_wire(subnet: Subnet, other: Subnet) -> bool:
    single = max(subnet.network.prefixlen, other.network.prefixlen) == subnet.network.max_prefixlen
    return not single and subnet.version == other.version and subnet.network.overlaps(other.network)


def _prefix(link: lan.LanPlace, other: Subnet, main: Subnet, lost: list[lan.LanPlace]) -> Finding:
    name = link.interface.name
    far = fold_names(link.node for link in lost)
    level = fail if lost else warn
    what = (
        f"{name} has the prefix length /{link.network.prefixlen} on a wire where {main.network} is that of "
        f"{fold_names(sorted(main.nodes))}"
    )
    return level(
        Where(node=link.node, device=name, peer=(lost or main.links)[0].node),
        f"{what}, so that it takes {far} for a neighbour, and nothing passes between them" if lost else what,
        why="Packets to such a node never reach the router: ranks wait for each other silently."
        if lost
        else "These nodes find each other now; others that one side takes for near and the other for far do not.",
        owner="node",
        evidence=[
            seen(link.node, f"{name} {link.address}, {link.network}"),
            seen("the others", main.network),
            *(
                seen("TCP connect", f"{link.node} to {far_link.node} ({far_link.address}) fails")
                for far_link in lost[:2]
            ),
        ],
        fix=[
            put_right(link.node, name, link.interface_address, main.network.prefixlen)
            if lost or len(main.nodes) > len(other.nodes)
            else _which(link, main)
        ],
    )


def _which(link: lan.LanPlace, main: Subnet) -> Remedy:
    """As many nodes have the one as the other: no command could know whom to change."""
    first = main.links[0]
    return admin(
        f"As many nodes have /{main.network.prefixlen} as /{link.network.prefixlen}: the plan of the network, or "
        "its DHCP server, says which is right; give it to the others.",
        f"ip -br addr show dev {quote(link.interface.name)}   # on {link.node}",
        f"ip -br addr show dev {quote(first.interface.name)}   # on {first.node}",
    )


def widened(ways: Ways, link: lan.LanPlace, peer: lan.LanPlace) -> Remedy:
    """Only where the two may be on one wire: a peer that asked there for this node, and got no answer, is not."""
    tried = ways.reached.seen.get((peer.node, link.node)) if ways.reached else None
    hops = tried.way.hops if tried and isinstance(tried.way, KernelRoute) else []
    if any(hop.address == link.address and hop.state in ("failed", "incomplete") for hop in hops):
        return admin(
            "The plan of the network says which prefix length is right, and whether a router is between the two.",
            f"ip -br addr; ip route   # on {link.node} and {peer.node}",
        )
    return put_right(link.node, link.interface.name, link.interface_address, peer.network.prefixlen)


def put_right(node: str, device: str, address: Address, prefix: int) -> Remedy:
    """The right one first, so that the address itself is never gone."""
    return admin(
        "Give it the prefix length of the others, and keep it in the network configuration. Routes by a gateway "
        "that only the old one reached go with it: see them before.",
        f"ip route show dev {quote(device)}   # on {node}",
        f"ip addr add {address.address}/{prefix} dev {quote(device)} && "
        f"ip addr del {address.address}/{address.prefix} dev {quote(device)}   # on {node}",
    )


def _of(link: lan.LanPlace, subnets: list[Subnet]) -> Subnet:
    """The subnet of a link."""
    return next(subnet for subnet in subnets if link.node in subnet.nodes)


def _lost_by_prefix(ways: Ways, link: lan.LanPlace, main: Subnet, subnets: list[Subnet]) -> list[lan.LanPlace]:
    """Nodes that this one takes for near and does not reach, though those of the right subnet do, if they try."""
    if ways.reached is None:
        return []
    at_home = ipaddress.ip_address(link.address) in main.network
    lost = []
    for subnet in subnets:
        if at_home and subnet is main:
            continue
        for peer in subnet.links:
            near = peer.node != link.node and ipaddress.ip_address(peer.address) in link.network
            if near and ways.way(peer, subnet, _of(link, subnets))[0] is SubnetOutcome.NONE:
                continue  # it cannot answer: that is said of it, and the wider prefix may be right
            witnesses = {ways.reached.passes(node, [peer.node]) for node in main.nodes - {peer.node}} - {None}
            if near and ways.reached.passes(link.node, [peer.node]) is False and witnesses in (set(), {True}):
                lost.append(peer)
    return lost
