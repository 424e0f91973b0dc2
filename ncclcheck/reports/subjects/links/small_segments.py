"""Connections whose segments are far smaller than the MTU of both ends allows: somebody rewrites TCP's MSS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ncclcheck.probes.facts import Node, PathMtu, value_or
from ncclcheck.reports.judgement.findings import Finding, Where, admin, seen, warn, you
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.links.reached import Pair, Reached
from ncclcheck.reports.text.words.fold import fold_names

_HEADERS = {4: 52, 6: 72}  # bytes of IP and TCP with time stamps. Source: RFC 9293, RFC 7323
_SMALL = 0.5  # of what the MTU allows: a tunnel on the path takes 50 to 100 bytes of 1,500; chosen


@dataclass(frozen=True)
class Small:
    """node: the end that all of these pairs share; empty where they share none."""

    node: str
    pairs: dict[Pair, tuple[int, int]]


def clamped(reached: Reached) -> Small | None:
    """Not where large packets are lost on the way: NET007 speaks of that, and TCP goes on with smaller ones."""
    small: dict[Pair, tuple[int, int]] = {}
    for (a, b), peer in reached.seen.items():
        mtus = [reached.of_node[name].mtu for name in (a, b) if name in reached.of_node]
        way = peer.path_mtu
        if isinstance(way, PathMtu) and way.arrived < way.sent:
            continue
        reported = way.told if isinstance(way, PathMtu) else 0
        mss = value_or(peer.mss, 0)
        allowed = (
            min([*mtus, *([reported] if reported else [])], default=0) - _HEADERS[6 if ":" in peer.address else 4]
        )
        if 0 < mss < allowed * _SMALL:
            small[a, b] = mss, allowed
    if not small:
        return None
    shared = set.intersection(*(set(pair) for pair in small))
    several = len({frozenset(pair) for pair in small}) > 1
    return Small(next(iter(shared)) if several and shared else "", small)


def finding(reached: Reached, small: Small, nodes: Mapping[str, Node]) -> Finding:
    """At the node that all share, with its own rule where it could be read."""
    (a, b), (mss, allowed) = min(small.pairs.items(), key=lambda each: each[1])
    rules = {name: firewall.clamping(nodes[name]) for name in ([small.node] if small.node else [a, b])}
    ruled = [name for name, listed in rules.items() if listed]
    who = small.node or (ruled[0] if len(ruled) == 1 else "")
    by = "a packet filter or a router on the path rewrites TCP's MSS (a clamp)"
    if who in ruled:
        by = f"{who}'s own packet filter writes that into them ({firewall.shown(rules[who][0])})"
    ends = fold_names(sorted({name for pair in small.pairs for name in pair} - {small.node}))
    what = f"connections of {small.node} with {ends}" if small.node else f"connections between {ends}"
    sizes = "; ".join(f"{x} to {y}: {size}" for (x, y), (size, _) in list(small.pairs.items())[:4])
    return warn(
        Where(node=who, device=reached.interface(who) or None) if who else Where(node=b, peer=a),
        f"{what} have segments of {mss} bytes, where the MTU allows {allowed}: {by}",
        why="A packet costs the same work whatever it holds: such a link carries a small part of its speed.",
        owner="node" if who else "site",
        evidence=[
            seen("TCP_INFO, tcpi_snd_mss", sizes),
            *(firewall.on_node(name, chain) for name in ruled for chain in rules[name][:2]),
        ],
        fix=[
            admin(
                "Take the clamp out, or let it follow the path: `tcp option maxseg size set rt mtu`.",
                f"nft -a list ruleset | grep -n maxseg   # on {who or ends}",
                f"iptables-save -t mangle | grep TCPMSS   # on {who or ends}",
            ),
            you("See the sizes that connections have.",
                f"ss -tin | grep -o ' mss:[0-9]*' | sort | uniq -c   # on {who or a}"),
        ],
    )  # fmt: skip
