"""What the nodes saw of each other, ready for rules: pairs, groups that reach each other, and who is to blame."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ncclcheck.probes.facts import Cluster, Connect, KernelRoute, Network, NodeReach, PeerReach, Unread, replace
from ncclcheck.reports.judgement.rule import NothingToJudge

_USABLE_WITHIN_S = 0.5  # s of uncertainty above which a measured clock offset says nothing; chosen

# Threads that could run, for each core, from which a machine is short of cores: as _BUSY of culprit/alone.py,
# which names the loads at which it was seen. Three others take a core of which a burst needs all.
_BUSY = 3.0

Pair = tuple[str, str]
Direction = Literal["in", "out", "both"]


@dataclass(frozen=True)
class Reached:
    """The measurements of the nodes that a rule may judge. seen: (from, to) -> what `from` saw of `to`.

    Without the nodes that share an address: whoever answers there may be anybody (NET010).
    """

    of_node: dict[str, NodeReach]
    seen: dict[Pair, PeerReach]

    @property
    def connects(self) -> dict[Pair, Connect]:
        """How each try to connect went, where that is known."""
        return {pair: peer.connect for pair, peer in self.seen.items() if not isinstance(peer.connect, Unread)}

    @cached_property
    def busy(self) -> set[str]:
        """Nodes that were short of cores meanwhile: what they are slow at may be no network's doing."""
        return {name for name, reach in self.of_node.items() if reach.running > _BUSY}

    @cached_property
    def odd_ways(self) -> dict[str, dict[str, KernelRoute]]:
        """For each node the peers to which the kernel sends by another table than its main one, and how."""
        ways: dict[str, dict[str, KernelRoute]] = {}
        for (a, b), peer in self.seen.items():
            if isinstance(peer.way, KernelRoute) and peer.way.table not in ("main", "local", ""):
                ways.setdefault(a, {})[b] = peer.way
        return ways

    @cached_property
    def tries(self) -> dict[str, list[tuple[str, bool]]]:
        """For each node the peers that it tried to connect to, and whether it could."""
        tried: dict[str, list[tuple[str, bool]]] = {}
        for (a, b), connect in self.connects.items():
            tried.setdefault(a, []).append((b, connect.outcome == "ok"))
        return tried

    def passes(self, node: str, others: Collection[str]) -> bool | None:
        """Whether a node connects to all of the others that it tried, to none; None: not tried, or to some."""
        ends = {passed for peer, passed in self.tries.get(node, []) if peer in others}
        return ends.pop() if len(ends) == 1 else None

    def interface(self, node: str) -> str:
        """The interface from which a node took part."""
        return self.of_node[node].interface if node in self.of_node else ""

    def address(self, node: str) -> str:
        """The address with which a node took part."""
        return self.of_node[node].address if node in self.of_node else ""


def reached(cluster: Cluster) -> Reached | None:
    """The measurements between the nodes of this cluster; None where there are none."""
    names = {node.name for node in cluster.nodes}
    of_node = {reach.node: reach for reach in cluster.measurements.reach if reach.node in names}
    shared = shared_addresses(cluster)
    clear = {node: reach for node, reach in of_node.items() if reach.address not in shared}
    seen = {
        (node, peer.peer): peer
        for node, reach in clear.items()
        for peer in reach.peers
        if peer.peer in names and peer.address not in shared
    }
    return Reached(clear, seen) if seen else None


def shared_addresses(cluster: Cluster) -> set[str]:
    """Addresses with which several nodes took part, also nodes that this rule may not judge."""
    counts = Counter({reach.node: reach.address for reach in cluster.measurements.reach}.values())
    return {address for address, count in counts.items() if count > 1}


def after_the_job(cluster: Cluster) -> Cluster:
    """The cluster with what its nodes saw of each other after a job that failed, in place of before it.

    Their packet filters too, where they were read again.
    """
    measurements = cluster.measurements
    filters = {
        reach.node: reach.filters for reach in measurements.reach_after if not isinstance(reach.filters, Unread)
    }
    nodes = [
        replace(node, network=replace(node.network, filters=filters[node.name]))
        if node.name in filters and isinstance(node.network, Network)
        else node
        for node in cluster.nodes
    ]
    return replace(
        cluster, nodes=nodes, measurements=replace(measurements, reach=measurements.reach_after, reach_after=[])
    )


def closed(cluster: Cluster) -> set[Pair]:
    """Connections that passed before the job and failed after it."""
    before, after = reached(cluster), reached(after_the_job(cluster))
    if before is None or after is None:
        return set()
    passed = {pair for pair, connect in before.connects.items() if connect.outcome == "ok"}
    return {
        pair
        for pair, connect in after.connects.items()
        if pair in passed and connect.outcome not in ("ok", "silent")
    }


def closed_to(cluster: Cluster) -> list[str]:
    """The nodes that explain those connections; both ends where nobody can tell."""
    bad, after = closed(cluster), reached(after_the_job(cluster))
    if not bad or after is None:
        return []
    judged = set(after.connects)
    together = groups(after.of_node, judged - bad)
    if len(together) > 1 and len(together[0]) > len(together[1]):
        return sorted(node for group in together[1:] for node in group)
    culprits, left = blame(bad, judged)
    return sorted({culprit.node for culprit in culprits} | {node for pair in left for node in pair})


def required(cluster: Cluster) -> Reached:
    """The same for rules that have nothing else to go by."""
    measured = reached(cluster)
    if measured is None:
        addresses = [reach.address for reach in cluster.measurements.reach]
        shared = len(set(addresses)) < len(addresses)
        raise NothingToJudge(
            "its ground failed: NET010" if shared else "the nodes were not asked to reach each other"
        )
    return measured


def positions(reach: Reached) -> dict[str, float]:
    """Each clock against that of the first node, along pairs that could compare theirs."""
    ways: dict[str, list[tuple[str, float]]] = {}
    for (a, b), peer in reach.seen.items():
        if not isinstance(peer.clock, Unread) and peer.clock.within_s < _USABLE_WITHIN_S:
            ways.setdefault(a, []).append((b, peer.clock.seconds))
            ways.setdefault(b, []).append((a, -peer.clock.seconds))
    first = max(ways, key=lambda node: len(ways[node]), default="")
    clocks, queue = {first: 0.0} if ways else {}, deque([first] if ways else [])
    while queue:
        node = queue.popleft()
        for other, offset in ways[node]:
            if other not in clocks:
                clocks[other] = clocks[node] + offset
                queue.append(other)
    return clocks


def groups(nodes: Iterable[str], joined: Iterable[Pair]) -> list[list[str]]:
    """The nodes that hang together by these pairs, each group in the order of the nodes, the largest first."""
    place = {node: number for number, node in enumerate(nodes)}
    group = {node: [node] for node in place}
    for a, b in joined:
        if group[a] is not group[b]:
            group[a].extend(group[b])
            for node in group[b]:
                group[node] = group[a]
    islands = {id(members): sorted(members, key=place.__getitem__) for members in group.values()}
    return sorted(islands.values(), key=lambda island: (-len(island), place[island[0]]))


@dataclass(frozen=True)
class BadNode:
    """All pairs of a node are bad in this way: what comes in to it, what goes out of it, or both."""

    node: str
    way: Direction
    pairs: frozenset[Pair]


def blame(bad: Collection[Pair], judged: Collection[Pair]) -> tuple[list[BadNode], list[Pair]]:
    """The nodes that explain most of the bad pairs, and the pairs that no node explains.

    A node explains what is bad if all of its two or more pairs of a direction are bad.
    """
    left, named = set(bad), []
    candidates = _candidates(set(bad), judged)
    while candidates:
        best = max(
            candidates,
            key=lambda candidate: (len(candidate.pairs & left), candidate.way == "both", candidate.way == "in"),
        )
        if len(best.pairs & left) < 2:
            break
        left -= best.pairs
        named.append(best)
        candidates.remove(best)
    return named, sorted(left)


def _candidates(bad: set[Pair], judged: Collection[Pair]) -> list[BadNode]:
    pairs: dict[tuple[str, Direction], set[Pair]] = {}
    for pair in judged:
        for key in ((pair[0], "out"), (pair[1], "in"), (pair[0], "both"), (pair[1], "both")):
            pairs.setdefault(key, set()).add(pair)
    least = {"in": 2, "out": 2, "both": 4}
    return [
        BadNode(node, way, frozenset(of_node))
        for (node, way), of_node in sorted(pairs.items())
        if len(of_node) >= least[way] and of_node <= bad
    ]
