"""A link that is down, or went down while the job ran: what fails meanwhile is its consequence."""

from __future__ import annotations

from shlex import quote

from ncclcheck.probes.facts import Cluster, Interface, LinkEvents, Node, replace, value_or
from ncclcheck.reports.judgement.findings import Finding, Remedy, admin, seen, you
from ncclcheck.reports.subjects.nccl import lan


def explained(cluster: Cluster, finding: Finding) -> Finding:
    """The same, with the link of its node that the kernel saw go down during the job, where there is one."""
    node = finding.where.node or ""
    link = _lost(cluster, node)
    if link is None:
        return finding
    times = "once" if link.downs == 1 else f"{link.downs} times"
    return replace(
        finding,
        where=replace(finding.where, device=link.name),
        what=f"{link.name} of {node} lost its link {times} while the job ran; what fails is its consequence: "
        f"{finding.what}",
        owner="node",
        evidence=[
            seen(f"/sys/class/net/{link.name}/carrier_down_count", f"rose by {link.downs}"),
            *finding.evidence,
        ],
        remedies=[
            admin(
                "Look at its cable, transceiver and switch port: a link that comes and goes.",
                f"dmesg -T | grep -i 'link'   # on {node}",
                f"ip -s -s link show {quote(link.name)}   # on {node}",
            ),
            you("Leave the node out until then.", f"#SBATCH --exclude={quote(node)}"),
        ],
    )


def stand_ins(cluster: Cluster, links: list[lan.LanPlace]) -> dict[str, str]:
    """Nodes that chose another interface since the one in the others' subnet has no link: node and that interface.

    It is to be brought back, and no reason for any node to go elsewhere.
    """
    interfaces: dict[str, str] = {}
    nodes = {node.name: node for node in cluster.nodes}
    chosen = lan.SortedAddresses(link.address for link in links)
    for link in links:
        own = lan.SortedAddresses([link.address])
        if chosen.within(link.network) > own.within(link.network):
            continue
        for interface in away(nodes[link.node]):
            networks = [network for _, network in lan.global_networks(interface)]
            if any(chosen.within(network) > own.within(network) for network in networks):
                interfaces.setdefault(link.node, interface.name)
    return interfaces


def away(node: Node) -> list[Interface]:
    """Interfaces that are down, or have no link."""
    return [
        interface
        for interface in lan.interfaces(node)
        if False in (interface.up, interface.running) and interface.kind != "loopback"
    ]


def off(node: Node, name: str) -> str:
    """How an interface of a node is away: switched off there, or without a link, which is a matter of the wire."""
    interface = next(each for each in lan.interfaces(node) if each.name == name)
    return (
        f"{name} is down (switched off on the node)" if interface.up is False else f"{name} is up, but has no link"
    )


def bring_up(node: Node, name: str) -> Remedy:
    """What brings it back: a command where it is switched off, else somebody at the cable."""
    interface = next(each for each in lan.interfaces(node) if each.name == name)
    device, on = quote(name), f"# on {node.name}"
    if interface.up is False:
        return admin(
            "Bring the link up, and see what took it down: ifupdown, NetworkManager, or a person.",
            f"ip link set dev {device} up   {on}",
        )
    return admin(
        "It is switched on and has no carrier: look at its cable, its transceiver and the switch port.",
        f"ethtool {device} | grep -E 'Speed|Link detected'   {on}",
        f"dmesg -T | grep -i {device} | tail   {on}",
    )


def _lost(cluster: Cluster, node: str) -> LinkEvents | None:
    """A card's link that went down, and that no bond carries on for."""
    links = [
        link
        for interruption in cluster.measurements.interruptions
        if interruption.node == node
        for link in interruption.links
        if link.downs
    ]
    if not links:
        return None
    cards = {
        interface.name: interface
        for each in cluster.nodes
        if each.name == node
        for interface in lan.interfaces(each)
    }
    carried = {
        name
        for interface in cards.values()
        if interface.kind == "bond"
        for name in value_or(interface.members, [])
    }
    return next((link for link in links if link.name in cards and link.name not in carried), None)
