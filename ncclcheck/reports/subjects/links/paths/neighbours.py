"""Neighbour entries (ARP) that lead elsewhere: why a node does not reach a peer on its own wire.

Only what fails is explained by them: clouds and routers answer ARP for others with MACs of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import Cluster, Neighbour, Node, at, value_or
from ncclcheck.reports.judgement.findings import Finding, Where, admin, fail, seen, you
from ncclcheck.reports.subjects.links.reached import Pair, Reached
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import fold_names

_WHY = "Packets to this address go to another machine, or to none; ranks wait for each other silently."


@dataclass(frozen=True)
class Misled:
    """A node whose entry for a peer has none of the peer's MACs. owner: the node that has it, where it is one."""

    pair: Pair
    address: str
    entry: Neighbour
    owner: str


def misled(cluster: Cluster, reached: Reached, bad: Collection[Pair]) -> list[Misled]:
    """Those of the bad pairs that such an entry explains.

    What a machine answered counts where some entry in the cluster is true, so that this wire shows true MACs.
    """
    links = {link.node: link for link in lan.links(cluster)}
    owners = {mac: node.name for node in cluster.nodes for mac in _macs(node)}
    macs = {node.name: _macs(node) for node in cluster.nodes}
    entries = {
        (a, b): peer.neighbour
        for (a, b), peer in reached.seen.items()
        if isinstance(peer.neighbour, Neighbour) and macs[b] and b in links and links[b].address == peer.address
    }
    shown = any(entry.mac in macs[b] for (_, b), entry in entries.items())
    return [
        Misled(pair, reached.seen[pair].address, entries[pair], owners.get(entries[pair].mac, ""))
        for pair in sorted(bad)
        if pair in entries
        and entries[pair].mac not in macs[pair[1]]
        and (entries[pair].permanent or shown or entries[pair].mac in owners)
    ]


def _macs(node: Node) -> set[str]:
    """All MACs of a node: with two cards on one wire either may answer for both."""
    listed = value_or(at(node, "network.interfaces"), [])
    return {mac for interface in listed if interface.kind != "loopback" and (mac := value_or(interface.mac, ""))}


def findings(cases: list[Misled], links: Mapping[str, lan.LanPlace]) -> Iterator[Finding]:
    """One for every entry that somebody wrote, and one for every address for which another machine answers."""
    yield from (_written(case) for case in cases if case.entry.permanent)
    answered: dict[tuple[str, str], list[Misled]] = {}
    for wrong in cases:
        if not wrong.entry.permanent:
            answered.setdefault((wrong.pair[1], wrong.entry.mac), []).append(wrong)
    yield from (_answered(misled, links[node]) for (node, _), misled in answered.items())


def _whose(wrong: Misled) -> str:
    return f"that of {wrong.owner}" if wrong.owner else "of no node of this job"


def _written(wrong: Misled) -> Finding:
    (node, peer), name = wrong.pair, wrong.entry.interface
    return fail(
        Where(node=node, device=name, peer=peer),
        f"{node} has a permanent neighbour entry that sends {wrong.address} ({peer}) to the MAC address "
        f"{wrong.entry.mac}, {_whose(wrong)}",
        why=_WHY,
        owner="node",
        evidence=[
            seen(f"/proc/net/arp of {node}", f"{wrong.address} {wrong.entry.mac} {name}, permanent"),
            seen("TCP connect", f"{node} to {peer} fails"),
        ],
        fix=[
            admin(
                "Take the entry away, here and where it is made.",
                f"ip neigh del {quote(wrong.address)} dev {quote(name)}",
            ),
            you("See what the kernel knows of it.", f"ip neigh show {quote(wrong.address)}"),
        ],
    )


def _answered(misled: list[Misled], link: lan.LanPlace) -> Finding:
    first, name = misled[0], link.interface.name
    askers = [wrong.pair[0] for wrong in misled]
    return fail(
        Where(node=link.node, device=name, peer=first.owner or None),
        f"another machine answers for {link.address}, the address of {link.node}: {fold_names(askers)} found the "
        f"MAC address {first.entry.mac} there, {_whose(first)}",
        why=_WHY,
        owner="site",
        evidence=[
            seen(f"/proc/net/arp of {askers[0]}", f"{link.address} {first.entry.mac} {first.entry.interface}"),
            seen(link.node, f"{name} has {value_or(link.interface.mac, 'another one')}"),
        ],
        fix=[
            admin(
                "Find the machine by its MAC in the switch's table, and give it another address.",
                f"arping -D -c 3 -I {quote(name)} {quote(link.address)}   # on {link.node}",
            ),
            admin(
                "Then let the others ask anew.",
                f"ip neigh flush to {quote(link.address)}   # on {fold_names(askers)}",
            ),
        ],
    )
