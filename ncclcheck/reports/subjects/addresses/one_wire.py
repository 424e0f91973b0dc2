"""An address in the subnet of the others, for a node on the same wire that has one in another subnet."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator
from shlex import quote

from ncclcheck.probes.facts import Address, Node, Resolution, at
from ncclcheck.reports.judgement.findings import Remedy, admin
from ncclcheck.reports.subjects.addresses.names import hosts_file
from ncclcheck.reports.subjects.nccl import lan


def offer(
    nodes: Iterable[Node], node: Node, interface: str, address: Address, network: lan.IPNetwork, peer: str
) -> list[Remedy]:
    """Its own number in the subnet of the peer, where that is nobody's. The old address stays, behind the new one:

    NCCL and gloo take the first.
    """
    bare = _same_number(network, address.address, {used for each in nodes for used in _addresses(each)})
    if not bare:
        return []
    old, device, on = f"{address.address}/{address.prefix}", quote(interface), f"on {node.name}"
    name = at(node, "host.own_name")
    by_old = isinstance(name, Resolution) and address.address in name.addresses
    return [
        admin(
            f"If {node.name} and {peer} are on one wire, with no router between them, give {interface} an "
            "address of that subnet and put the old one behind it, here and in the network configuration. Routes "
            "through the old one go with it: see them before.",
            f"ping -c 2 {bare}   # on {peer}: no answer means that the address is free",
            f"ip route show dev {device}   # {on}",
            f"ip addr add {bare}/{network.prefixlen} dev {device} && ip addr del {old} dev {device} && "
            f"ip addr add {old} dev {device}   # {on}",
            *([f"{hosts_file.named(name.name, bare, [address.address])}   # on every node"] if by_old else []),
        )
    ]


def _addresses(node: Node) -> Iterator[str]:
    return (address.address for interface in lan.interfaces(node) for address, _ in lan.global_networks(interface))


def _same_number(network: lan.IPNetwork, old: str, taken: Collection[str]) -> str:
    """Empty where that is no host's number, or another node has it."""
    own, last = ipaddress.ip_address(old), int(network.hostmask)
    number = int(own) & last
    free = str(network.network_address + number)
    return "" if own.version != network.version or number in (0, last) or free in taken else free
