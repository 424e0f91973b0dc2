"""A node at whose interface nothing arrives of what the others send: no packet filter of its own has a part in it.

The kernel counts what a card received before any filter sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import Neighbour, PeerReach, Unread
from ncclcheck.reports.judgement.findings import Remedy, admin
from ncclcheck.reports.subjects.links.reached import Pair, Reached

# Bytes that a node which hears nobody may have counted in 3 s: what its own host puts on the interface, and
# broadcasts (70 and 224 were seen in the lab); a sound one receives thousands, for all others send to it.
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


def deaf(found: Reached, pairs: Sequence[Pair]) -> Deaf | None:
    """The one node that all of these pairs have in common, where nothing arrived at its interface."""
    for node in sorted({node for pair in pairs for node in pair}):
        out, back = ([found.seen[p] for p in pairs if p[end] == node] for end in (0, 1))
        received = _received(found, node)
        if len(out) + len(back) != len(pairs) or len(back) < 2 or not out:
            continue
        if received is None or received > _MOST_OF_A_DEAF_ONE:
            continue
        held = [one.neighbour for one in back if isinstance(one.neighbour, Neighbour)]
        asks = all(found.connects[pair].kept == "neighbour" for pair in pairs if pair[0] == node)
        known = len(held) == len(back) and not any(one.permanent for one in held)
        if not known or not (asks or all(map(_was_sent, back))):
            continue
        return Deaf(node, received, asks, heard=not any(one.held_before for one in held))
    return None


def _was_sent(peer: PeerReach) -> bool:
    return not isinstance(peer.echoes, Unread) and peer.echoes.sent > 0


def _received(found: Reached, node: str) -> int | None:
    """Bytes that its interface received while nodes tried each other, where they were counted."""
    of_node = found.of_node.get(node)
    if of_node is None or isinstance(of_node.beside, Unread) or isinstance(of_node.counters, Unread):
        return None
    if not (of_node.beside.seconds and of_node.beside.bytes_out):
        return None
    return of_node.beside.bytes_in + of_node.counters.bytes_in
