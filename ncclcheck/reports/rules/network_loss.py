"""Rule about packets that are lost between nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster, Counters, NodeReach, Unread
from ncclcheck.reports import flows
from ncclcheck.reports.findings import Evidence, Finding, Remedy, State, Where, admin, fine, seen, warn, you
from ncclcheck.reports.flows import Loss
from ncclcheck.reports.reached import Pair, Reached, required
from ncclcheck.reports.rule import NothingToJudge, rule

_LEAST_SEGMENTS = 500
_MOST_PAIRS = 8


@rule(
    "NET009",
    "no more than a trace of retransmits, drops and errors",
    worst=State.WARN,
    at_least=2,
    ground=("NET006",),
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
    from several others is named once.

    ## Fix
    - **admin** on the named node: `ethtool -S eth0`, `ip -s -s link show eth0`; then cable, transceiver, the
      counters of its switch port, and filters that limit rates.
    - **you** leave the node out until then.

    ## Source
    tcp(7) (TCP_INFO), proc(5) (/proc/net/dev), ethtool(8), ip-link(8).
    """
    found = required(cluster)
    limits = cluster.policy.thresholds
    percent = limits.get("NET009.loss_percent", 1.0)
    udp = flows.udp_losses(found)
    tcp = _fast_bursts(cluster, found, percent)
    lost = list(_lossy(udp, percent, "UDP"))
    named = {node for one in lost for node in one.nodes}
    rest = {pair: loss for pair, loss in tcp.items() if not named & set(pair)}
    lost += _lossy(rest, limits.get("NET009.retransmits_percent", 2.0), "TCP")
    counted = {n: reach.counters for n, reach in found.of_node.items() if not isinstance(reach.counters, Unread)}
    single = [one for one in lost if one.peer]
    for one in [one for one in lost if not one.peer] + single[:_MOST_PAIRS]:
        yield _lost(found, one, counted, len(single))
    blamed = {one.node for one in lost}
    for node, counters in counted.items():
        if node not in blamed and _too_many(counters):
            yield _errors(found.of_node[node], counters)
    if not udp and not tcp:
        raise NothingToJudge("no packet was counted")
    if not lost:
        yield fine(
            Where(), f"{flows.total(udp.values())} small packets lost, {flows.total(tcp.values())} sent again"
        )


def _fast_bursts(cluster: Cluster, found: Reached, percent: float) -> dict[Pair, Loss]:
    """Without bursts of slow senders and receivers: they overrun a queue because the link is slow (NET008)."""
    limits = cluster.policy.thresholds
    given = flows.rates(found, percent)
    bounds = (limits.get("NET008.of_peers_percent", 50.0), limits.get("NET008.enough_gbit", 2.0))
    slow = {(one.node, one.sends) for one in flows.slow_nodes(given, *bounds)}
    pairs = flows.slow_pairs(given, *bounds)
    return {
        (a, b): loss
        for (a, b), loss in flows.tcp_losses(found).items()
        if (a, True) not in slow
        and (b, False) not in slow
        and (a, b) not in pairs
        and loss.sent >= _LEAST_SEGMENTS
    }


@dataclass(frozen=True)
class _Lost:
    """Loss at a node (way: to it, from it, both), or between two nodes, or everywhere (node is empty)."""

    kind: str
    node: str
    peer: str
    way: str
    loss: Loss
    by_pair: Mapping[Pair, Loss]

    @property
    def nodes(self) -> set[str]:
        """The nodes that this explains."""
        return {self.node} if self.node and not self.peer else {node for pair in self.by_pair for node in pair}


def _lossy(losses: Mapping[Pair, Loss], percent: float, kind: str) -> list[_Lost]:
    """The worst node and direction first; what it explains is taken out before looking again."""
    left = dict(losses)
    ends: dict[tuple[str, str], list[Pair]] = {}
    for a, b in losses:
        ends.setdefault((b, "to"), []).append((a, b))
        ends.setdefault((a, "from"), []).append((a, b))
    found: list[_Lost] = []
    while ends:
        sums = {key: flows.total(left[pair] for pair in pairs if pair in left) for key, pairs in ends.items()}
        (node, way), worst = max(sums.items(), key=lambda item: (item[1].percent, item[1].lost))
        here = {pair: left[pair] for pair in ends.pop((node, way)) if pair in left}
        if not flows.is_lossy(worst, percent):
            break
        if sum(loss.lost > 0 for loss in here.values()) < 2:
            continue
        found.append(_Lost(kind, node, "", way, worst, here))
        left = {pair: loss for pair, loss in left.items() if pair not in here}
    return [*_merged(found, losses, kind), *_single(left, percent, kind)]


def _merged(found: list[_Lost], losses: Mapping[Pair, Loss], kind: str) -> list[_Lost]:
    """Both directions of a node are one; if all nodes lose, no node is the culprit."""
    nodes = {node for pair in losses for node in pair}
    if len(nodes) > 2 and len({one.node for one in found}) >= len(nodes) - 1:
        return [_Lost(kind, "", "", "", flows.total(losses.values()), losses)]
    by_node: dict[str, _Lost] = {}
    for one in found:
        first = by_node.get(one.node)
        by_node[one.node] = one if first is None else _Lost(
            kind, one.node, "", "to and from", first.loss + one.loss, {**first.by_pair, **one.by_pair}
        )  # fmt: skip
    return list(by_node.values())


def _single(left: Mapping[Pair, Loss], percent: float, kind: str) -> list[_Lost]:
    return [
        _Lost(kind, a, b, "to", loss, {(a, b): loss})
        for (a, b), loss in left.items()
        if flows.is_lossy(loss, percent)
    ]


def _lost(found: Reached, one: _Lost, counted: Mapping[str, Counters], pairs: int) -> Finding:
    what = {"UDP": "small packets are lost", "TCP": "segments of a burst had to be sent again"}[one.kind]
    if not one.node:
        place = "between all nodes, so it is not one node's: look at what they share"
    elif one.peer:
        among = f" (one of {pairs} such pairs)" if pairs > 1 else ""
        place = f"from {one.node} to {one.peer}{among}: as they leave the one or come in to the other"
    else:
        place = f"{one.way} {one.node}, seen with {len(_others(one))} other nodes"
    where = Where(node=one.node or None, peer=one.peer or None, device=found.interface(one.node) or None)
    return warn(
        where,
        f"{one.loss} {what} {place}",
        why="TCP waits at least 200 ms for what it lost at the end of a message; every collective waits with it.",
        owner="node" if one.node else "site",
        evidence=[
            seen("losses" if one.kind == "UDP" else "TCP_INFO", _by_pair(one)),
            *(_counters(node, counted[node]) for node in (one.node, one.peer) if node in counted),
        ],
        fix=_mend(where.device or "eth0", one.node),
    )


def _others(one: _Lost) -> set[str]:
    return {node for pair in one.by_pair for node in pair} - {one.node}


def _by_pair(one: _Lost) -> str:
    worst = sorted(one.by_pair.items(), key=lambda item: -item[1].percent)
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
            f"ethtool -S {interface} | grep -iE 'err|drop|disc|crc'",
            f"ip -s -s link show {interface}",
        ),
        you("Leave it out until it is mended.", f"#SBATCH --exclude={node or 'NODE'}"),
    ]
