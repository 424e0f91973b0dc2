"""Which nodes and which ways between nodes lose packets, as the nodes counted them before any job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.subjects.links import flows
from ncclcheck.reports.subjects.links.flows import PacketLoss
from ncclcheck.reports.subjects.links.reached import Pair, Reached, reached

_LEAST_SEGMENTS = 500  # of a burst, 0.7 MB: with fewer, one that is sent again is already 0.2 %; chosen


@dataclass(frozen=True)
class LostPackets:
    """Loss at a node (way: to it, from it, both), or between two nodes, or everywhere (node is empty)."""

    kind: str
    node: str
    peer: str
    way: str
    loss: PacketLoss
    by_pair: Mapping[Pair, PacketLoss]

    @property
    def nodes(self) -> set[str]:
        """The nodes that this explains."""
        return {self.node} if self.node and not self.peer else {node for pair in self.by_pair for node in pair}


@derived
def lost(cluster: Cluster) -> list[LostPackets]:
    """The worst first; none where the nodes were not asked. Segments sent again say less than packets lost."""
    reach = reached(cluster)
    if reach is None:
        return []
    limits = cluster.policy.thresholds
    percent = limits.get("NET009.loss_percent", 1.0)
    by_udp = list(blamed(flows.udp_losses(reach), percent, "UDP"))
    named = {node for loser in by_udp for node in loser.nodes}
    rest = {pair: loss for pair, loss in fast_bursts(cluster, reach).items() if not named & set(pair)}
    return by_udp + blamed(rest, limits.get("NET009.retransmits_percent", 2.0), "TCP")


def fast_bursts(cluster: Cluster, reach: Reached) -> dict[Pair, PacketLoss]:
    """Segments sent again, without those of slow senders and receivers: a slow link overruns a queue (NET008).

    Nor between nodes that lose full-size packets in either direction: what is sent again there is NET007's.
    """
    limits = cluster.policy.thresholds
    given = flows.rates(reach, limits.get("NET009.loss_percent", 1.0))
    bounds = (limits.get("NET008.of_peers_percent", 50.0), limits.get("NET008.enough_gbit", 2.0))
    slow = {(slow_node.node, slow_node.sends) for slow_node in flows.slow_nodes(given, *bounds)}
    pairs = flows.slow_pairs(given, *bounds)
    short = {frozenset(pair) for pair, peer in reach.seen.items() if flows.cut_short(peer)}
    return {
        (a, b): loss
        for (a, b), loss in flows.tcp_losses(reach).items()
        if (a, True) not in slow
        and (b, False) not in slow
        and (a, b) not in pairs
        and frozenset((a, b)) not in short
        and loss.sent >= _LEAST_SEGMENTS
    }


def blamed(losses: Mapping[Pair, PacketLoss], percent: float, kind: str) -> list[LostPackets]:
    """By node and direction, the worst first; what one explains is taken out before looking again."""
    left = dict(losses)
    ends: dict[tuple[str, str], list[Pair]] = {}
    for a, b in losses:
        ends.setdefault((b, "to"), []).append((a, b))
        ends.setdefault((a, "from"), []).append((a, b))
    losts: list[LostPackets] = []
    while ends:
        sums = {key: flows.total(left[pair] for pair in pairs if pair in left) for key, pairs in ends.items()}
        (node, way), worst = max(sums.items(), key=lambda item: (item[1].percent, item[1].lost))
        here = {pair: left[pair] for pair in ends.pop((node, way)) if pair in left}
        if not flows.is_lossy(worst, percent):
            break
        if sum(loss.lost > 0 for loss in here.values()) < 2:
            continue
        losts.append(LostPackets(kind, node, "", way, worst, here))
        left = {pair: loss for pair, loss in left.items() if pair not in here}
    return [*_merged(losts, losses, kind), *_single(left, percent, kind)]


def _merged(losts: list[LostPackets], losses: Mapping[Pair, PacketLoss], kind: str) -> list[LostPackets]:
    """Both directions of a node are one; if all nodes lose, no node is the culprit."""
    nodes = {node for pair in losses for node in pair}
    if len(nodes) > 2 and len({loser.node for loser in losts}) >= len(nodes) - 1:
        return [LostPackets(kind, "", "", "", flows.total(losses.values()), losses)]
    by_node: dict[str, LostPackets] = {}
    for lossy in losts:
        first = by_node.get(lossy.node)
        by_node[lossy.node] = lossy if first is None else LostPackets(
            kind, lossy.node, "", "to and from", first.loss + lossy.loss, {**first.by_pair, **lossy.by_pair}
        )  # fmt: skip
    return list(by_node.values())


def _single(left: Mapping[Pair, PacketLoss], percent: float, kind: str) -> list[LostPackets]:
    return [
        LostPackets(kind, a, b, "to", loss, {(a, b): loss})
        for (a, b), loss in left.items()
        if flows.is_lossy(loss, percent)
    ]
