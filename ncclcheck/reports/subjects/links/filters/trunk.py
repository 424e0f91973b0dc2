"""A part of the connections between two groups of nodes is lost, by their ports, and inside of either none is.

Switches spread connections over the members of a trunk (LAG, ECMP) by addresses and ports. Where one member is
dead or drops, a connection fails each time and the next one passes: no node is to blame, nor a filter on one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import Connect, PeerReach, Volley
from ncclcheck.reports.judgement.findings import Finding, Where, admin, fail, seen, you
from ncclcheck.reports.subjects.links.reached import Pair, Reached, groups
from ncclcheck.reports.text.words.fold import fold_names

# Connections of a pair that are late, of those opened at once (8), from which on it is no chance: a wire that
# loses 1 % of its packets delays 3 of 8 in one pair of 3,000 (volleys.py).
_LEAST_LATE = 3
_LEAST_NODES = 2  # a group of one is that node, or its own link
# Connections of a pair that were tried twice from the same ports, and of either fate, so that equal fates are no
# chance: a wire that loses 8 % of its packets gives two late ones, and the same two again, once in 200 pairs.
_LEAST_AGAIN, _LEAST_OF_EACH = 6, 2


@dataclass(frozen=True)
class Trunk:
    """Two groups, and the pairs across of which a part is lost."""

    groups: tuple[tuple[str, ...], tuple[str, ...]]
    pairs: frozenset[Pair]


def trunk(reached: Reached) -> Trunk | None:
    """Where the nodes fall into two groups in each of which all connections pass at once, and across only some."""
    tried = {pair: _lost(peer) for pair, peer in reached.seen.items()}
    clean = [pair for pair, lost in tried.items() if lost is False]
    nodes = list(dict.fromkeys(node for pair in tried for node in pair))
    both_ways = [(a, b) for a, b in clean if tried.get((b, a), False) is False]
    apart = groups(nodes, both_ways)
    if len(apart) != 2 or any(len(group) < _LEAST_NODES for group in apart):
        return None
    side = {node: number for number, group in enumerate(apart) for node in group}
    across = [pair for pair in tried if side[pair[0]] != side[pair[1]]]
    inside = [lost for pair, lost in tried.items() if side[pair[0]] == side[pair[1]]]
    bad = [pair for pair in across if tried[pair]]
    some_pass = any(_passes(reached.seen[pair]) for pair in across)
    # Both ends of every pair across are hit, in one way at least.
    hit = all(tried[pair] or tried.get(pair[::-1]) for pair in across)
    if any(inside) or not hit or not some_pass or len(bad) < len(across) / 2:
        return None
    return Trunk((tuple(apart[0]), tuple(apart[1])), frozenset(across))


@dataclass(frozen=True)
class ByPorts:
    """Pairs of which the same connections fail each time. node: in all of them, where there are several."""

    node: str
    pairs: frozenset[Pair]


def by_ports(reached: Reached, explained: Collection[Pair] = ()) -> ByPorts | None:
    """Where source ports decide, twice over, whether a connection is answered."""
    decided = {pair for pair, peer in reached.seen.items() if pair not in explained and _decided_by_port(peer)}
    # The other direction of such a pair may have had only ports of one fate.
    pairs = decided | {(b, a) for a, b in decided if (b, a) in reached.seen}
    if not pairs:
        return None
    common = set.intersection(*(set(pair) for pair in pairs)) if len({*map(frozenset, pairs)}) > 1 else set()
    return ByPorts(next(iter(common), ""), frozenset(pairs))


def _decided_by_port(peer: PeerReach) -> bool:
    volley = peer.volley
    return (
        isinstance(volley, Volley)
        and volley.again >= _LEAST_AGAIN
        and volley.same == volley.again
        and _LEAST_OF_EACH <= volley.late <= volley.opened - _LEAST_OF_EACH
    )


def findings_by_ports(reached: Reached, ports: ByPorts) -> Iterator[Finding]:
    """One for all pairs, at the node that they share, else at the link."""
    pairs = sorted(ports.pairs)
    a, b = pairs[0]
    between = sorted({frozenset(pair) for pair in pairs}, key=sorted)
    ends = "; ".join(" and ".join(sorted(pair)) for pair in between[:4])
    volleys = [(p, v) for p in pairs if isinstance(v := reached.seen[p].volley, Volley) and v.again]
    counts = "; ".join(
        f"{x} to {y}: {v.late} of {v.opened} late, {v.same} of {v.again} the same again"
        for (x, y), v in volleys[:4]
    )
    at_node = f" of {ports.node}'s link" if ports.node else ""
    where = (
        Where(node=ports.node, device=reached.interface(ports.node) or None)
        if ports.node
        else Where(node=a, peer=b)
    )
    yield fail(
        where,
        f"between {ends} some connections are never answered and the others always, by their ports: one "
        f"member{at_node} of a trunk (LAG, bond) or of several equal routes (ECMP) on the path is dead",
        why="Of a job's hundreds of connections those that take the dead member never open, and the ranks wait.",
        owner="site",
        evidence=[seen("connections opened at once, and again from the same ports", counts)],
        fix=[
            admin(
                "Take the dead member out: see which port of the trunk counts no traffic, or errors, and whether "
                "LACP runs on it (a static trunk keeps a member that is dead on the way). A packet filter of "
                "single ports would look alike.",
                "for p in $(seq 40001 40016); do "
                f"nc -z -w 1 -p $p {reached.seen[a, b].address} 22 && echo $p ok || "
                f"echo $p lost; done   # on {a}: which ports are lost, the same each time",
                "cat /proc/net/bonding/* 2>/dev/null | grep -E 'Interface|MII Status|Aggregator'"
                f"   # on {a} and {b}",
            ),
            you("Until then leave one of them out.", f"#SBATCH --exclude={quote(ports.node or b)}"),
        ],
    )


def _lost(peer: PeerReach) -> bool | None:
    """Whether some of its connections were lost; None: it is not known."""
    if not isinstance(peer.connect, Connect):
        return None
    if peer.connect.outcome == "timed_out":
        return True
    if peer.connect.outcome != "ok":
        return None
    return isinstance(peer.volley, Volley) and peer.volley.late >= _LEAST_LATE


def _passes(peer: PeerReach) -> bool:
    """A connection that was opened, and one at least of those opened at once."""
    return isinstance(peer.connect, Connect) and peer.connect.outcome == "ok"


def findings(reached: Reached, path: Trunk) -> Iterator[Finding]:
    """One for the way between the two groups."""
    ends = [fold_names(group) for group in path.groups]
    pairs = sorted(path.pairs)
    volleys = {p: v for p in pairs if isinstance(v := reached.seen[p].volley, Volley)}
    opened, late = (sum(getattr(v, name) for v in volleys.values()) for name in ("opened", "late"))
    dead = [p for p in pairs if not _passes(reached.seen[p])]
    counts = "; ".join(f"{a} to {b}: {v.late} of {v.opened}" for (a, b), v in list(volleys.items())[:4])
    alike = sorted({a for a, _ in path.pairs})[0]
    far = next(b for a, b in pairs if a == alike)
    address = reached.seen[alike, far].address
    yield fail(
        Where(),
        f"between {ends[0]} and {ends[1]} a part of the connections is lost, by their ports, and inside of either "
        "group none: one member of the trunk between their switches (LAG, ECMP) is dead, or a firewall between "
        "them "
        "drops new connections",
        why="Of a job's hundreds of connections across some never open, or wait for seconds, and so do the ranks.",
        owner="site",
        evidence=[
            seen("no answer in 0.8 s, of connections opened at once across", f"{late} of {opened} ({counts})"),
            seen(
                "connections across that failed each time", ", ".join(f"{a} to {b}" for a, b in dead[:4]) or "none"
            ),
            seen("inside of either group", "all connections passed at once"),
        ],
        fix=[
            admin(
                f"Take the dead member out of the trunk between the switches of {ends[0]} and {ends[1]}: see "
                "which of "
                "its ports counts no traffic or errors, and whether LACP runs on it (a static trunk keeps a "
                "member "
                "that is dead on the way).",
                f"for p in $(seq 40001 40016); do nc -z -w 1 -p $p {address} 22 && echo $p ok || echo $p lost; "
                "done"
                f"   # on {alike}: which ports are lost, the same each time",
            ),
            you(
                f"Until then let the job run on one side: {ends[0]}, or {ends[1]}.",
                f"#SBATCH --exclude={ends[1]}",
            ),
        ],
    )
