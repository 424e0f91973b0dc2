"""What to do about an address that several nodes have: another interface, or another address for all but one."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from shlex import quote

from ncclcheck.probes.facts import Address, Cluster, Interface, Node, Resolution, at
from ncclcheck.reports.judgement.findings import Remedy, admin, you
from ncclcheck.reports.output.settings_forms import quoted
from ncclcheck.reports.subjects.addresses.names import hosts_file
from ncclcheck.reports.subjects.nccl import lan

_FAR = 4096  # addresses of a subnet that are looked through for a free one


def fix(cluster: Cluster, address: str, holders: Sequence[tuple[str, str]]) -> list[Remedy]:
    """Whoever has it may go on with another network; the address itself is its administrator's."""
    nodes = {node.name: node for node in cluster.nodes}
    return [_without(nodes, holders), *_readdressed(nodes, address, holders)]


def _without(nodes: dict[str, Node], holders: Sequence[tuple[str, str]]) -> Remedy:
    """An interface that all of them have beside this one, else without the second of them."""
    common = [{interface.name for interface in _others(nodes[node], device)} for node, device in holders]
    names = [
        interface.name
        for interface in _others(nodes[holders[0][0]], holders[0][1])
        if all(interface.name in c for c in common)
    ]
    if not names:
        return you("Leave one of them out until then.", f"#SBATCH --exclude={quote(holders[1][0])}")
    return you(
        f"Name another interface of these nodes: {' or '.join(names)}.",
        f"export NCCL_SOCKET_IFNAME={quoted(f'={names[0]}')}",
        f"export GLOO_SOCKET_IFNAME={quote(names[0])}",
    )


def _others(node: Node, device: str) -> Iterator[Interface]:
    """That may lead out of the machine; eth0 of a pod is a veth."""
    inside = {"bridge", "loopback", "tunnel", "virtual"}
    return (
        interface
        for interface in lan.interfaces(node)
        if interface.name != device and lan.is_usable(interface) and interface.kind not in inside
    )


def _readdressed(nodes: dict[str, Node], address: str, holders: Sequence[tuple[str, str]]) -> list[Remedy]:
    """All but the first get another address, unless one's own name says which should have another one.

    Not of bridges: Docker's has one address everywhere, and leads nowhere.
    """
    if any(
        interface.kind == "bridge"
        for node, device in holders
        for interface in lan.interfaces(nodes[node])
        if interface.name == device
    ):
        return []
    wrong = [holder for holder in holders if _meant(nodes[holder[0]], address)] or [*holders[1:]]
    free = _free(nodes, address)
    lines: list[str] = []
    for node, device in wrong:
        old = next(
            a
            for interface in lan.interfaces(nodes[node])
            for a, _ in lan.global_networks(interface)
            if a.address == address
        )
        if not (new := _meant(nodes[node], address) or next(free, "")):
            break
        lines += _lines(nodes[node], device, old, new)
    text = (
        "Give all but one an address of their own, here and in the network configuration; from a console, for a "
        "session over this address ends."
    )
    return [admin(text, "ip -br addr", *lines)]


def _lines(node: Node, device: str, own: Address, new: str) -> list[str]:
    """The old address first: a second one of its subnet would go with it."""
    name, old, on = at(node, "host.own_name"), f"{own.address}/{own.prefix}", f"on {node.name}"
    by_old = isinstance(name, Resolution) and own.address in name.addresses
    return [
        f"arping -D -c 2 -I {quote(device)} {new}   # {on}: an answer means that somebody has it",
        f"ip addr del {old} dev {quote(device)} && ip addr add {new}/{own.prefix} dev {quote(device)}   # {on}",
        f"ip neigh flush to {own.address}   # on every node",
        *([f"{hosts_file.named(name.name, new, [own.address])}   # on every node"] if by_old else []),
    ]


def _meant(node: Node, address: str) -> str:
    """The address that the node's own name has, where that is one of the same family and not loopback."""
    name = at(node, "host.own_name")
    addresses = name.addresses if isinstance(name, Resolution) and address not in name.addresses else []
    return next((own for own in addresses if lan.is_routable(own) and (":" in own) == (":" in address)), "")


def _free(nodes: dict[str, Node], address: str) -> Iterator[str]:
    """Addresses after it in its subnet that no node of this cluster has."""
    listed = [
        (address, net)
        for node in nodes.values()
        for interface in lan.interfaces(node)
        for address, net in lan.global_networks(interface)
    ]
    taken = {address.address for address, _ in listed}
    network = next(net for holding, net in listed if holding.address == address)
    own, last = ipaddress.ip_address(address), int(network.network_address) + int(network.hostmask)
    after = range(int(own) + 1, min(last, int(own) + _FAR))
    return (text for number in after if (text := str(type(own)(number))) not in taken)
