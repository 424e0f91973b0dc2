"""Nodes of one subnet that all others reach, and that hear nothing of each other: the switch keeps them apart.

A private VLAN, port isolation or a protected port lets each of them talk to some ports only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from shlex import quote

from ncclcheck.probes.facts import Unread
from ncclcheck.reports.judgement.findings import Evidence, Finding, Where, admin, fail, you
from ncclcheck.reports.subjects.links.reached import Pair, Reached
from ncclcheck.reports.text.fold import fold_names


def by_the_switch(found: Reached, bad: Collection[Pair], passed: Collection[Pair]) -> set[Pair]:
    """Pairs between which nothing passes, either way, not even ARP, though both ends reach a third node."""
    mutual = {pair for pair in bad if pair[::-1] in bad and not _udp_arrived(found, pair)}
    unasked = {pair for pair in mutual if found.connects[pair].kept == "neighbour"}
    return {
        pair
        for pair in mutual
        if {pair, pair[::-1]} & unasked and pair[::-1] in mutual and _meet(*pair, passed=passed)
    }


def _udp_arrived(found: Reached, pair: Pair) -> bool:
    echoes = found.seen[pair].echoes
    return not isinstance(echoes, Unread) and echoes.arrived > 0


def _meet(a: str, b: str, *, passed: Collection[Pair]) -> bool:
    """Whether some other node reaches both of them, and they reach it."""
    both_ways = {pair for pair in passed if pair[::-1] in passed}
    return bool({peer for one, peer in both_ways if one == a} & {peer for one, peer in both_ways if one == b})


def finding(found: Reached, pairs: Collection[Pair], evidence: Sequence[Evidence], why: str) -> Finding:
    """One for all of them: it is one setting of the switch."""
    nodes = sorted({node for pair in pairs for node in pair})
    a, b = min(pairs)
    alone = len(pairs) == len(nodes) == 2
    many = "" if alone else f" ({len(pairs) // 2} pairs)"
    name, address = quote(found.interface(a) or "eth0"), quote(found.seen[a, b].address)
    return fail(
        Where(node=a, peer=b, device=found.interface(a) or None) if alone else Where(),
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
