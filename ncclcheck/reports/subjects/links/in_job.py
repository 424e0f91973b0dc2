"""What the job's own TCP connections say of the network while it ran: packets lost, and outages that went by.

The ways are tried before the job. What begins later shows here alone, also where the job comes to its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import Cluster, Node, Sent
from ncclcheck.reports.judgement.findings import Evidence, Finding, Remedy, Where, admin, fail, seen, warn, you
from ncclcheck.reports.subjects.links import losses
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.links.flows import PacketLoss
from ncclcheck.reports.subjects.links.reached import Pair
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import fold_names, many

# Seconds in sum. TCP repeats after 0.2 s and more; one loss in a full queue of a healthy network costs that once,
# of a node that several peers miss together 0.4 s. Chosen.
_LEAST_S, _OF_ONE_PAIR_S = 0.4, 1.0
_LEAST_SEGMENTS = 500  # as of a burst (losses.py)
_MOST_TOLD = 4  # pairs in one evidence; chosen


@dataclass(frozen=True)
class JobCut:
    """A node, two, or none in particular: their pairs, whose packets went unanswered for a time."""

    nodes: tuple[str, ...]
    pairs: Mapping[Pair, Sent]

    @property
    def worst(self) -> Sent:
        """The pair that waited longest."""
        return max(self.pairs.values(), key=lambda sent: sent.unanswered_s)


def sent(cluster: Cluster) -> dict[Pair, Sent]:
    """By nodes, over the interface that the job would use on both."""
    links = {link.node: link for link in lan.read_links(cluster)}
    of_address = {link.address: link.node for link in links.values()}
    return {
        (interruption.node, of_address[path.target]): path
        for interruption in cluster.measurements.interruptions
        for path in interruption.sent or ()
        if interruption.node in links
        and path.source == links[interruption.node].address
        and path.target in of_address
    }


def lost(cluster: Cluster) -> list[losses.LostPackets]:
    """Nodes and pairs that lost more than a full queue does, and of which NET009 did not say so before the job."""
    percent = cluster.policy.thresholds.get("NET009.retransmits_percent", 2.0)
    counted = {
        pair: PacketLoss(counts.again, max(counts.again, counts.segments))
        for pair, counts in sent(cluster).items()
        if counts.segments >= _LEAST_SEGMENTS
    }
    known = {node for loss in losses.lost(cluster) for node in loss.nodes}
    return [loss for loss in losses.blamed(counted, percent, "TCP") if not loss.nodes & known]


def cuts(cluster: Cluster) -> list[JobCut]:
    """The node that all silent pairs have in common; else pairs, each of which was silent for long.

    Where most nodes would be named it is what they share: no node.
    """
    paths = sent(cluster)
    silent = {pair: path for pair, path in paths.items() if path.unanswered_s >= _LEAST_S}
    by_node, left = [], dict(silent)
    for node in sorted({node for pair in silent for node in pair}, key=lambda name: -len({*_peers(silent, name)})):
        mine = {pair: path for pair, path in left.items() if node in pair}
        if len({*_peers(mine, node)}) > 1 and any(node not in pair for pair in paths):
            by_node.append(JobCut((node,), mine))
            left = {pair: path for pair, path in left.items() if pair not in mine}
    if len(by_node) > 1 and 2 * len(by_node) >= len({node for pair in paths for node in pair}) - 1:
        return [JobCut((), silent)]
    ends = {(min(pair), max(pair)) for pair, path in left.items() if path.unanswered_s >= _OF_ONE_PAIR_S}
    return [
        *by_node,
        *(JobCut(two, {p: path for p, path in left.items() if {*p} == {*two}}) for two in sorted(ends)),
    ]


def _peers(pairs: Mapping[Pair, Sent], node: str) -> Iterator[str]:
    return (other for pair in pairs if node in pair for other in pair if other != node)


def findings(cluster: Cluster, explained: set[str], effect: str) -> Iterator[Finding]:
    """explained: nodes of which it is known why they did not answer. effect: what the job lost by it."""
    links = {link.node: link for link in lan.read_links(cluster)}
    nodes = {node.name: node for node in cluster.nodes}
    named = {*explained}
    for cut in cuts(cluster):
        if not {*cut.nodes} & named:
            named |= {*cut.nodes}
            yield _cut(cut, links[min(cut.pairs)[0] if not cut.nodes else cut.nodes[0]].interface.name, effect)
    for loss in lost(cluster):
        if loss.node and not {loss.node, loss.peer} & named:
            yield _by_own_filter(nodes, links, loss, effect)


def _cut(cut: JobCut, device: str, effect: str) -> Finding:
    worst = cut.worst
    if len(cut.nodes) == 1:
        node, others = cut.nodes[0], fold_names(sorted({*_peers(cut.pairs, cut.nodes[0])}))
        where = Where(node=node, device=device)
        what = f"{device} of {node} went silent while the job ran: packets to or from it were lost, with {others}"
    elif cut.nodes:
        a, b = cut.nodes
        where = Where(node=a, peer=b, device=device)
        what = (
            f"between {a} and {b} packets were lost for a time while the job ran, and between others they were not"
        )
    else:
        where = Where()
        what = "between most nodes packets were lost for a time while the job ran: look at what they share"
    return warn(
        where,
        f"{what} ({many(worst.outages, 'time')}, {worst.unanswered_s:.1f} s in all){effect}",
        why="All ranks wait meanwhile; it may come again, and longer, until a time-out that names no cause.",
        owner="node" if len(cut.nodes) == 1 else "site",
        evidence=[_evidence(pair, path) for pair, path in _worst(cut.pairs)],
        fix=_fix(where.node or min(cut.pairs)[0], device),
    )


def _lost(lossy: losses.LostPackets, device: str, effect: str) -> Finding:
    place = f"from {lossy.node} to {lossy.peer}" if lossy.peer else f"{lossy.way} {lossy.node}"
    return warn(
        Where(node=lossy.node, peer=lossy.peer or None, device=device),
        f"{lossy.loss} segments of the job's connections {place} were lost and sent again{effect}; before the job "
        "few or none were",
        why="TCP waits at least 200 ms for what it lost at the end of a message; every collective waits with it.",
        owner="node",
        evidence=[
            seen(f"TCP_INFO, {a} to {b}", str(loss))
            for (a, b), loss in sorted(lossy.by_pair.items(), key=lambda item: -item[1].percent)[:_MOST_TOLD]
        ],
        fix=_fix(lossy.node, device),
    )


def _by_own_filter(
    nodes: Mapping[str, Node], links: Mapping[str, lan.LanPlace], lossy: losses.LostPackets, effect: str
) -> Finding:
    """The loss; where a rule of a node's own drops packets of that way, that is why, and no cable."""
    finding = _lost(lossy, links[lossy.node].interface.name, effect)
    by = firewall.stops_a_part(nodes, [*lossy.by_pair])
    if by is None or by.node not in links:
        return finding
    return fail(
        Where(node=by.node, device=links[by.node].interface.name),
        f"{by.node} itself {by.words}: {finding.what}",
        why=finding.why,
        owner="node",
        evidence=[*by.evidence, *finding.evidence],
        fix=[by.fix(str(links[by.node].network)), *(remedy for remedy in finding.remedies if remedy.who == "you")],
    )


def _worst(pairs: Mapping[Pair, Sent]) -> list[tuple[Pair, Sent]]:
    return sorted(pairs.items(), key=lambda item: -item[1].unanswered_s)[:_MOST_TOLD]


def _evidence(pair: Pair, path: Sent) -> Evidence:
    return seen(
        f"sock_diag(7), {pair[0]} to {pair[1]}",
        f"{path.unanswered_s:.1f} s without an acknowledgement in {many(path.outages, 'outage')}, {path.again} of "
        f"{path.segments} segments sent again",
    )


def _fix(node: str, device: str) -> list[Remedy]:
    name = quote(device)
    return [
        admin(
            "Look at its counters and its kernel log, then at cable, transceiver, switch port and their counters; "
            "and at filters and limits there that were set meanwhile.",
            f"ethtool -S {name} | grep -iE 'err|drop|disc|pause|crc'   # on {node}",
            f"tc -s qdisc show dev {name}; nft list ruleset | grep -E 'drop|limit'   # on {node}",
            f"dmesg -T | tail -30   # on {node}",
        ),
        you("See whether it comes again.", "ncclcheck bench --soak 60"),
    ]
