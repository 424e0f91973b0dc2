"""Nodes with two addresses that chose the one which the others do not reach."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Address, Interface
from ncclcheck.reports.judgement.findings import Finding, Where, admin, fail, seen, you
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.subjects.nccl.ways import Subnet, Ways
from ncclcheck.reports.text.words.fold import fold_names


def seconds(ways: Ways, other: Subnet, main: Subnet) -> Iterator[tuple[lan.LanPlace, tuple[Interface, Address]]]:
    """The nodes of a subnet that have an address in the other one as well, which they did not choose."""
    for link in other.links:
        if second := ways.second(link, main):
            yield link, second


def finding(link: lan.LanPlace, main: Subnet, interface: Interface, address: Address) -> Finding:
    """The node whose first address is in a subnet that others do not reach, and whose other one they do."""
    name, first = link.interface.name, f"{link.address}/{link.network.prefixlen}"
    same = interface.name == name
    right = f"its second address, {address.address}," if same else f"{address.address} on {interface.name}"
    where = f", {main.remark}" if main.remark.endswith("endpoint is") else ""
    by_name = you(
        f"On {link.node} name the interface of that subnet.",
        f'export NCCL_SOCKET_IFNAME="={interface.name}"',
        f"export GLOO_SOCKET_IFNAME={interface.name}",
    )
    in_order = admin(
        "Let the address of the job's network come first, here and in the network configuration. Routes through "
        "the other one go with it; see them before.",
        f"ip route show dev {name}",
        f"ip addr del {first} dev {name} && ip addr add {first} dev {name}",
    )
    return fail(
        Where(node=link.node, device=name, peer=main.links[0].node),
        f"{name} has {first} first, in a subnet to which {fold_names(sorted(main.nodes))} has no route; "
        f"{right} is in {main}{where}",
        why="NCCL and gloo take the first address of an interface, and give it to the others, who wait in vain.",
        owner="node",
        evidence=[
            seen(link.node, f"{name} {first}, {interface.name} {address.address}/{address.prefix}"),
            seen(main.links[0].node, f"{main.links[0].interface.name} {main.links[0].address}, {main.network}"),
        ],
        fix=[in_order if same else by_name],
    )
