"""Addresses that gloo tells by a node's own name, and that the others do not reach: IPv6 that a firewall drops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from shlex import quote

from ncclcheck.probes.facts import ByName, Cluster, Connect, KernelRoute, replace
from ncclcheck.reports.judgement.findings import Finding, Where, fail, seen, you
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.links.paths import own_way
from ncclcheck.reports.subjects.links.reached import Pair, Reached, blame
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import fold_names

_NO_WAY = ("unreachable", "not_sent")  # the kernel here has no route, or no address of that family to send from
_ANSWERED = ("ok", "refused")  # nothing of ours listens there, so that the kernel refuses what passes


def findings(cluster: Cluster, reached: Reached, links: Mapping[str, lan.LanPlace]) -> Iterator[Finding]:
    """Where gloo is used: the nodes behind such pairs, and the pairs that no node explains, once both ways."""
    tried = {
        pair: peer.by_name
        for pair, peer in reached.seen.items()
        if isinstance(peer.by_name, ByName) and isinstance(peer.connect, Connect) and peer.connect.outcome == "ok"
    }
    bad = {pair for pair, name in tried.items() if name.connect.outcome not in _ANSWERED}
    if not bad or not lan.uses_gloo(cluster):
        return
    culprits, left = blame(bad, set(tried))
    for culprit in culprits:
        pairs = sorted(culprit.pairs)
        yield _explained(cluster, _told(culprit.node, pairs, tried, reached, links), pairs, tried)
    for pair in left:
        if pair[::-1] not in left or pair < pair[::-1]:
            both = [way for way in (pair, pair[::-1]) if way in left]
            yield _explained(cluster, _told(pair[1], both, tried, reached, links), both, tried)


def _explained(cluster: Cluster, finding: Finding, pairs: list[Pair], tried: Mapping[Pair, ByName]) -> Finding:
    """The same with its cause: a kernel without IPv6, or a filter that drops what finds its neighbours."""
    nodes = {node.name: node for node in cluster.nodes}
    for pair in pairs:
        to = tried[pair]
        # A route of its own was not asked for: none at all is what the kernel said.
        way = KernelRoute(address=to.address, error=to.connect.detail) if to.connect.outcome in _NO_WAY else None
        if way is not None and (cause := own_way.cause(nodes[pair[0]], way)):
            where = Where(node=pair[0], device=cause.device)
            by_name = [remedy for remedy in finding.remedies if remedy.who == "you"]
            fix = [*by_name, *(remedy for remedy in cause.fix if remedy.who == "admin")]
            return replace(finding, where=where, what=f"{finding.what}: {cause.words}", owner="node", remedies=fix)
    node = next((node for node in cluster.nodes if node.name == finding.where.node), None)
    chain = own_way.without_neighbours(node) if node else None
    if node is None or chain is None or finding.where.device is None:
        return finding
    why = own_way.WITHOUT_NEIGHBOURS.format(firewall.shown(chain))
    remedies = [
        own_way.neighbours_in(node, chain, finding.where.device),
        *(r for r in finding.remedies if r.who == "you"),
    ]
    where = replace(finding.where, peer=None)
    return replace(finding, where=where, what=f"{finding.what}: {why}", owner="node", remedies=remedies)


def _told(
    node: str, pairs: list[Pair], tried: Mapping[Pair, ByName], reach: Reached, links: Mapping[str, lan.LanPlace]
) -> Finding:
    (a, b), address = pairs[0], tried[pairs[0]].address
    others = sorted({end for pair in pairs for end in pair} - {node})
    device = links[node].interface.name if node in links else reach.interface(node)
    return fail(
        Where(node=node, device=device or None, peer=others[0]),
        f"{node} and {fold_names(others)} reach each other at {reach.seen[a, b].address}, but not at {address}, "
        f"which the own name of {b} resolves to first and gloo gives the others",
        why="gloo takes the first address of a node's own name and no other: the ranks wait until a time-out.",
        owner="site",
        evidence=[
            seen("TCP connect", f"{x} to {y} at {tried[x, y].address}: {_said(tried[x, y].connect)}")
            for x, y in pairs[:4]
        ],
        fix=[
            you(
                "On every node, let gloo take the first address of the interface.",
                f"export GLOO_SOCKET_IFNAME={quote(device or 'eth0')}",
            ),
            firewall.let_in(
                "Let the nodes connect to each other at these addresses too.",
                [str(ip_network(f"{address}/{64 if ':' in address else 24}", strict=False))],
                node,
            ),
        ],
    )


def _said(connect: Connect) -> str:
    return connect.detail or connect.outcome
