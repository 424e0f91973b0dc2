"""What the ranks of a job used, node by node, as rules about transports look at it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ncclcheck.probes.facts import Cluster, Connections, Endpoint, Moved, Node, Traffic, Transport, Unread, at
from ncclcheck.reports.judgement.findings import Evidence, Finding, Where, not_read, seen, you
from ncclcheck.reports.judgement.rule import NothingToJudge


@dataclass(frozen=True)
class UsedRanks:
    """The ranks of one node of which something was read."""

    node: Node
    ranks: tuple[Transport, ...]
    traffic: Traffic | None = None

    @property
    def where(self) -> Where:
        """The node, as findings name it."""
        return Where(node=self.node.name)

    @cached_property
    def _listed(self) -> list[Connections]:
        return [
            connection
            for rank in self.ranks
            if not isinstance(rank.connections, Unread)
            for connection in rank.connections
        ]

    def kinds(self, peers: str) -> dict[str, int]:
        """How many connections there are of each kind: within the node (intra), or between nodes (inter)."""
        counts: dict[str, int] = {}
        for connections in self._listed:
            if connections.peers == peers:
                counts[connections.kind] = counts.get(connections.kind, 0) + connections.count
        return counts

    @property
    def network(self) -> str:
        """What NCCL said that it uses between nodes."""
        return next((rank.network for rank in self.ranks if not isinstance(rank.network, Unread)), "")

    @property
    def bootstrap(self) -> Endpoint | None:
        """Where the ranks of NCCL met."""
        endpoints = (rank.bootstrap for rank in self.ranks)
        return next((endpoint for endpoint in endpoints if not isinstance(endpoint, Unread)), None)

    @property
    def interfaces(self) -> list[Endpoint]:
        """The interfaces of NET/Socket or of gloo's sockets, each once."""
        return list(dict.fromkeys(endpoint for rank in self.ranks for endpoint in rank.interfaces))

    def moved(self, what: str) -> dict[str, Moved]:
        """What interfaces or hcas moved meanwhile, by name; empty where no counter was read."""
        moved = getattr(self.traffic, what, None)
        return {device.name: device for device in moved} if isinstance(moved, list) else {}

    def seen(self, *peers: str) -> Evidence:
        """The connections as the log, or the sockets, have them."""
        source = "NCCL's log" if self.ranks[0].source == "log" else "open sockets of the ranks"
        counts = [f"{count} x {kind}" for peer in peers for kind, count in sorted(self.kinds(peer).items())]
        return seen(source, ", ".join(counts) or "no connection of this kind")


def used(cluster: Cluster) -> list[UsedRanks]:
    """Every node of which at least one rank could be read. Raises NothingToJudge where there is none at all."""
    nodes = {node.name: node for node in cluster.nodes}
    traffic = {traffic.node: traffic for traffic in cluster.measurements.traffic}
    ranks: dict[str, list[Transport]] = {}
    for rank in cluster.measurements.transport:
        if rank.node in nodes and not isinstance(rank.connections, Unread):
            ranks.setdefault(rank.node, []).append(rank)
    if not cluster.measurements.transport:
        raise NothingToJudge("no job was run")
    return [UsedRanks(nodes[name], tuple(transports), traffic.get(name)) for name, transports in ranks.items()]


def by_nccl(cluster: Cluster) -> list[UsedRanks]:
    """Nodes whose ranks used NCCL. Raises NothingToJudge where gloo was used."""
    if all(rank.source == "sockets" for rank in cluster.measurements.transport):
        raise NothingToJudge("gloo was used, which has one transport only: TCP")
    return used(cluster)


def unseen(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each node of which no rank could be read."""
    why: dict[str, Unread] = {}
    read = set()
    for rank in cluster.measurements.transport:
        if isinstance(rank.connections, Unread):
            why.setdefault(rank.node, rank.connections)
        else:
            read.add(rank.node)
    for node, fact in why.items():
        if node not in read:
            yield not_read(
                Where(node=node),
                "measurements.transport",
                fact,
                "over what its ranks ran could not be read",
                why="Which transport was used is not known, and so not that it was the right one.",
                owner="job",
                fix=[you("Run it again without settings of your own for NCCL's log.",
                         "unset NCCL_DEBUG NCCL_DEBUG_FILE NCCL_DEBUG_SUBSYS")],
            )  # fmt: skip


def several_nodes(cluster: Cluster) -> None:
    """Raises NothingToJudge where nothing crosses a network."""
    if len({rank.node for rank in cluster.measurements.transport}) < 2:
        raise NothingToJudge("one node: nothing crosses a network")


def has_fact(node: Node, path: str) -> bool:
    """Whether a fact is known, or is known to be absent."""
    fact = at(node, path)
    return not isinstance(fact, Unread) or fact.kind == "absent"
