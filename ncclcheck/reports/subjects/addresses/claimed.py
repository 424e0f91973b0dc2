"""A node's address that another machine on the wire has as well: as that machine itself said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, value_or
from ncclcheck.reports.judgement.findings import Finding, Where, admin, fail, seen, you
from ncclcheck.reports.subjects.nccl import lan


def findings(cluster: Cluster) -> Iterator[Finding]:
    """One a node. A machine that has the addresses of several nodes answers for others (proxy ARP)."""
    names = {node.name for node in cluster.nodes}
    asked = [reach for reach in cluster.measurements.reach if reach.node in names]
    claims = {reach.node: value_or(reach.claimed, []) for reach in asked}
    proxies = {mac for mac, count in Counter(mac for macs in claims.values() for mac in macs).items() if count > 1}
    cards = {
        value_or(interface.mac, ""): (node.name, interface.name)
        for node in cluster.nodes
        for interface in lan.interfaces(node)
    }
    for reach in asked:
        for mac in [mac for mac in claims[reach.node] if mac not in proxies][:1]:
            other = cards.get(mac)
            who = f"{other[0]} ({other[1]}, {mac})" if other else f"another machine, {mac}"
            yield fail(
                Where(node=reach.node, device=reach.interface, peer=other[0] if other else None),
                f"its address {reach.address} is used twice: {who} has it too",
                why="What is sent to this address goes to whichever of the two answered last, and changes by the "
                "minute: connections are refused, or stop in the middle.",
                owner="site",
                evidence=[seen(f"ARP probe for {reach.address} on {reach.interface}", f"answered by {mac}")],
                fix=[
                    admin(
                        "Find that machine by its MAC address in the table of the switch, and give it another "
                        "address. This shows whether somebody answers still:",
                        f"arping -D -c 3 -I {quote(reach.interface)} {reach.address}   # on {reach.node}",
                        f"ip neigh flush to {reach.address}   # on every node, once it is free",
                    ),
                    you("Leave the node out until then.", f"#SBATCH --exclude={quote(reach.node)}"),
                ],
            )
