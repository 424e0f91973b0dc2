"""Rule about packets that are lost between nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from shlex import quote

from ncclcheck.probes.facts import Cluster, Counters, NodeReach, Unread
from ncclcheck.reports.culprit import Slowed, slowed_by_loss
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.failures.limits import shaping
from ncclcheck.reports.subjects.links import flows, losses
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.links.losses import LostPackets
from ncclcheck.reports.subjects.links.reached import Reached, required
from ncclcheck.reports.subjects.nccl import lan

_MOST_PAIRS = 8  # pairs that are named; chosen


@rule(
    "NET009",
    "retransmits, drops and errors are negligible",
    worst=State.FAIL,
    at_least=2,
    ground=("NET006", "NET010"),
    between_machines=True,
)
def loss(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How many packets are lost between nodes, in which direction, and whether interfaces count errors or drops.

    ## Why it matters
    Nothing fails when a bad cable, a dirty transceiver or a full switch queue loses a few packets of a hundred:
    the job runs to its end, only that small collectives take 85 ms instead of 1, and no log says a word.

    ## How we know
    Up to 300 small UDP packets to each node on an idle network, counted by the receiver: more than 1 % lost is a
    warning (NET009.loss_percent). Segments that TCP sent again in a short burst (TCP_INFO): more than 2 %
    (NET009.retransmits_percent), for a burst at full speed may overrun a healthy queue. Errors and drops of the
    interface during the burst, from /proc/net/dev: more than 0.1 % of its packets. A node that loses towards or
    from several others is named once. A failure where the job's exchanges over a path that loses packets are below
    half of a healthy one (BEN004.fail_percent): what is slow there follows from the loss.
    A rule of an end's own packet filter that stops a part of the packets is named as the cause.

    ## Fix
    - **admin** on the named node: `ethtool -S eth0`, `ip -s -s link show eth0`; then cable, transceiver, the
      counters of its switch port, and filters that limit rates.
    - **you** leave the node out until then.

    ## Source
    tcp(7) (TCP_INFO), proc(5) (/proc/net/dev), ethtool(8), ip-link(8).
    """
    reached = required(cluster)
    udp, tcp = flows.udp_losses(reached), losses.fast_bursts(cluster, reached)
    lost = losses.lost(cluster)
    slowed = slowed_by_loss(cluster)
    counted = {n: reach.counters for n, reach in reached.of_node.items() if not isinstance(reach.counters, Unread)}
    single = [lost for lost in lost if lost.peer]
    for drop in [lost for lost in lost if not lost.peer] + single[:_MOST_PAIRS]:
        finding = _lost(reached, drop, counted, len(single), next((by for by in slowed if by.cause is drop), None))
        yield _busy_filter(cluster, drop, finding)
    blamed = {lost.node for lost in lost}
    for node, counters in counted.items():
        if node not in blamed and _too_many(counters):
            yield _errors(reached.of_node[node], counters)
    if not udp and not tcp:
        raise NothingToJudge("no packet was counted")
    if not lost:
        yield fine(
            Where(), f"{flows.total(udp.values())} small packets lost, {flows.total(tcp.values())} sent again"
        )


def _lost(
    reach: Reached, drop: LostPackets, counted: Mapping[str, Counters], pairs: int, slowed: Slowed | None
) -> Finding:
    what = {"UDP": "small packets are lost", "TCP": "segments of a burst had to be sent again"}[drop.kind]
    if not drop.node:
        place = "between all nodes, so it is not one node's: look at what they share"
    elif drop.peer:
        among = f" (one of {pairs} such pairs)" if pairs > 1 else ""
        place = f"from {drop.node} to {drop.peer}{among}: as they leave the one or come in to the other"
    else:
        place = f"{drop.way} {drop.node}, seen with {len(_others(drop))} other nodes"
    where = Where(node=drop.node or None, peer=drop.peer or None, device=reach.interface(drop.node) or None)
    make = fail if slowed else warn
    return make(
        where,
        f"{drop.loss} {what} {place}",
        why="TCP waits at least 200 ms for what it lost at the end of a message; every collective waits with it.",
        owner="node" if drop.node else "site",
        evidence=[
            seen("losses" if drop.kind == "UDP" else "TCP_INFO", _by_pair(drop)),
            *([seen("exchanges two by two", slowed.what)] if slowed else []),
            *(_counters(node, counted[node]) for node in (drop.node, drop.peer) if node in counted),
        ],
        fix=_mend(where.device or "eth0", drop.node),
    )


def _busy_filter(cluster: Cluster, lost: LostPackets, finding: Finding) -> Finding:
    """A node's own filter, which compares each with thousands of rules or stops some: no cable, no switch."""
    ends = {lost.node} if lost.node and not lost.peer else {node for pair in lost.by_pair for node in pair}
    causes = [(n.name, by) for n in cluster.nodes if n.name in ends and (by := shaping.compared(n))]
    if causes:
        name, by = causes[0]
        return _by_filter(finding, name, by.words, [by.evidence], by.fix)
    links = {link.node: link for link in lan.links(cluster)}
    some = firewall.stops_a_part({node.name: node for node in cluster.nodes}, [*lost.by_pair])
    if some is None or some.node not in links:
        return finding
    return _by_filter(finding, some.node, some.words, some.evidence, some.fix(str(links[some.node].network)))


def _by_filter(finding: Finding, name: str, words: str, evidence: Sequence[Evidence], fix: Remedy) -> Finding:
    return (fail if finding.state is State.FAIL else warn)(
        Where(node=name, device=finding.where.device),
        f"{name} itself {words}: {finding.what}",
        why=finding.why,
        owner="node",
        evidence=[*evidence, *finding.evidence],
        fix=[fix, *(each for each in finding.remedies if each.who == "you")],
    )


def _others(lost: LostPackets) -> set[str]:
    return {node for pair in lost.by_pair for node in pair} - {lost.node}


def _by_pair(lost: LostPackets) -> str:
    worst = sorted(lost.by_pair.items(), key=lambda item: -item[1].percent)
    return "; ".join(f"{a} to {b}: {loss}" for (a, b), loss in worst[:4]) + ("; ..." if len(worst) > 4 else "")


def _counters(node: str, counters: Counters) -> Evidence:
    return seen(
        f"/proc/net/dev on {node}", f"{counters.errors} errors, {counters.drops} drops, {counters.packets} packets"
    )


def _too_many(counters: Counters) -> bool:
    return max(counters.errors, counters.drops) > max(10, counters.packets / 1000)


def _errors(reach: NodeReach, counters: Counters) -> Finding:
    return warn(
        Where(node=reach.node, device=reach.interface),
        f"{reach.interface} counted {counters.errors} errors and {counters.drops} drops in a short burst",
        why="What is dropped must be sent again; what errs at little load errs more at full load.",
        owner="node",
        evidence=[_counters(reach.node, counters)],
        fix=_mend(reach.interface, reach.node),
    )


def _mend(interface: str, node: str) -> list[Remedy]:
    return [
        admin(
            "Look at its counters, then at cable, transceiver and switch port.",
            f"ethtool -S {quote(interface)} | grep -iE 'err|drop|disc|crc'",
            f"ip -s -s link show {quote(interface)}",
        ),
        *shaping.lifted(interface),
        you("Leave it out until it is repaired.", f"#SBATCH --exclude={quote(node or 'NODE')}"),
    ]
