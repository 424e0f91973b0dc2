"""What the switch does not deliver: a node at whose interface nothing arrives, and nodes that it keeps apart.

The kernel counts what a card received before any filter sees it, so that no filter of the node has a part in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import Neighbour, PeerReach, Unread
from ncclcheck.reports.judgement.findings import Evidence, Finding, Remedy, Where, admin, fail, you
from ncclcheck.reports.subjects.links.reached import Pair, Reached
from ncclcheck.reports.text.words.fold import fold_names

# Bytes that a node which hears nobody may have counted in 3 s: what its own host puts on the interface, and
# broadcasts (70 and 224 were seen in the lab); a healthy one receives thousands, for all others send to it.
_MOST_OF_A_DEAF_ONE = 500
_INWARD = "The receiving direction of its link is dead (a strand of the fibre, the transceiver, the switch port)"


@dataclass(frozen=True)
class Deaf:
    """A node that hears nothing. asks: it found no MAC address on its wire; heard: others learnt its own now."""

    node: str
    received: int
    asks: bool
    heard: bool

    def words(self, interface: str) -> str:
        """What is seen, and what can be the cause."""
        counted = f"{interface} received {self.received} bytes meanwhile"
        if not self.asks:
            return (
                f"nothing that the others send to {self.node} arrives at its interface: {counted}. No packet "
                "filter of its own has a part in that: the switch sends its frames elsewhere (a MAC address "
                "written into its table, or that a second port has as well), its port does not forward, or a "
                "cloud's security group drops them"
            )
        if self.heard:
            return (
                f"{self.node} is heard and hears nothing: the others hold its MAC address, it finds none of "
                f"theirs, and its {counted}. {_INWARD}, or the port was put into another VLAN"
            )
        return (
            f"{self.node} hears nothing: it finds no MAC address of the others (ARP), and its {counted}. Its "
            "switch port does not forward or is in another VLAN, or the receiving direction of its link is dead"
        )


def in_the_switch(node: str, interface: str) -> Remedy:
    """Where what is sent to it goes instead."""
    return admin(
        "Look this MAC address up in the switch's table: it must stand at the port of this node and at no other, "
        "and not as a static entry. See the port's state and its VLAN too, and in a cloud the security group.",
        f"cat /sys/class/net/{quote(interface)}/address   # on {node}",
        "bridge fdb show   # on the host of virtual machines",
    )


def deaf(reached: Reached, pairs: Sequence[Pair]) -> Deaf | None:
    """The one node that all of these pairs have in common, where nothing arrived at its interface."""
    for node in sorted({node for pair in pairs for node in pair}):
        out, back = ([reached.seen[p] for p in pairs if p[end] == node] for end in (0, 1))
        received = _received(reached, node)
        if len(out) + len(back) != len(pairs) or len(back) < 2 or not out:
            continue
        if received is None or received > _MOST_OF_A_DEAF_ONE:
            continue
        neighbours = [reach.neighbour for reach in back if isinstance(reach.neighbour, Neighbour)]
        asks = all(reached.connects[pair].kept == "neighbour" for pair in pairs if pair[0] == node)
        known = len(neighbours) == len(back) and not any(neighbour.permanent for neighbour in neighbours)
        if not known or not (asks or all(map(_was_sent, back))):
            continue
        return Deaf(node, received, asks, heard=not any(neighbour.held_before for neighbour in neighbours))
    return None


def _was_sent(peer: PeerReach) -> bool:
    return not isinstance(peer.echoes, Unread) and peer.echoes.sent > 0


def _received(reached: Reached, node: str) -> int | None:
    """Bytes that its interface received while nodes tried each other, where they were counted."""
    of_node = reached.of_node.get(node)
    if of_node is None or isinstance(of_node.beside, Unread) or isinstance(of_node.counters, Unread):
        return None
    if not (of_node.beside.seconds and of_node.beside.bytes_out):
        return None
    return of_node.beside.bytes_in + of_node.counters.bytes_in


def kept_apart(reached: Reached, bad: Collection[Pair], passed: Collection[Pair]) -> set[Pair]:
    """Pairs between which nothing passes, either way, not even ARP, though both ends reach a third node."""
    mutual = {pair for pair in bad if pair[::-1] in bad and not _udp_arrived(reached, pair)}
    unasked = {pair for pair in mutual if reached.connects[pair].kept == "neighbour"}
    met: defaultdict[str, set[str]] = defaultdict(set)  # the nodes that each reaches, and that reach it
    for node, peer in passed:
        if (peer, node) in passed:
            met[node].add(peer)
    return {
        (a, b)
        for a, b in mutual
        if {(a, b), (b, a)} & unasked and (b, a) in mutual and not met[a].isdisjoint(met[b])
    }


def _udp_arrived(reached: Reached, pair: Pair) -> bool:
    echoes = reached.seen[pair].echoes
    return not isinstance(echoes, Unread) and echoes.arrived > 0


def apart_finding(reached: Reached, pairs: Collection[Pair], evidence: Sequence[Evidence], why: str) -> Finding:
    """One for all of them: it is one setting of the switch."""
    nodes = sorted({node for pair in pairs for node in pair})
    a, b = min(pairs)
    alone = len(pairs) == len(nodes) == 2
    many = "" if alone else f" ({len(pairs) // 2} pairs)"
    name, address = quote(reached.interface(a) or "eth0"), quote(reached.seen[a, b].address)
    return fail(
        Where(node=a, peer=b, device=reached.interface(a) or None) if alone else Where(),
        f"the switch keeps {fold_names(nodes)} apart: not even ARP passes between them, either way, though other "
        f"nodes reach them{many}: isolated or protected ports, or a private VLAN",
        why=why,
        owner="site",
        evidence=[*evidence],
        fix=[
            admin(
                "Let the switch forward between the ports of these nodes: no port isolation, protected port or "
                "private VLAN on them. On the host of virtual machines see its bridge.",
                f"arping -c 3 -I {name} {address}   # on {a}",
                "bridge -d link show | grep -B1 'isolated on'   # on the host of virtual machines",
            ),
            you(
                "Leave all but one of them out until then.",
                f"#SBATCH --exclude={quote(','.join(nodes[1:]))}",
            ),
        ],
    )
