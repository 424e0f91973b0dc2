"""Rule about the largest packets that arrive between nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from shlex import quote

from ncclcheck.probes.facts import Cluster, PathMtu, Unread, replace, value_or
from ncclcheck.reports.judgement.findings import (
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.links import flows
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.links.reached import BadNode, Pair, Reached, blame, required
from ncclcheck.reports.subjects.nccl import lan

_STANDARD_MTU = 1500  # bytes, Ethernet
_MOST_PAIRS = 8  # pairs that are named; chosen


@rule(
    "NET007",
    "full-size packets arrive (path MTU)",
    worst=State.FAIL,
    at_least=2,
    ground=("NET006", "NET010"),
    between_machines=True,
    gates_job="by any failure",
)
def path_mtu(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether a packet as large as the interface's MTU arrives at each other node, unfragmented.

    ## Why it matters
    Where a switch port, a tunnel or the peer takes less than the sender's MTU, large packets vanish and small
    ones pass. ssh works, ranks meet, the first small collective works, and the first large one hangs. Between
    two neighbours TCP goes by the smaller MTU and survives; RoCE does not.

    ## Seen as
    hangs

    ## How we know
    UDP packets that may not be fragmented, of the interface's MTU and of 9000 to 576 bytes, each sent several
    times and confirmed by the receiver. A failure where a burst over TCP stood still as well; a warning where
    TCP flows or was not tried, or where a router told our kernel of the smaller size, so that TCP keeps to it.
    Where UDP is blocked this is unknown. A rule of an end's own packet filter that drops what is long is the
    cause.

    ## Fix
    - **admin** the same MTU on all nodes and on every switch port, bridge and tunnel between them:
      `ip link set dev eth0 mtu 1500`, and in the network configuration, so that it stays.
    - **you** see what passes: `ping -M do -s 1472 OTHER_NODE` (MTU less 28).

    ## Source
    NVIDIA/nccl#1524, NVIDIA/nccl#1957; ip(7) (IP_MTU_DISCOVER), ip-link(8), ping(8).
    """
    reached = required(cluster)
    mtus = {pair: peer.path_mtu for pair, peer in reached.seen.items() if not isinstance(peer.path_mtu, Unread)}
    # A tunnel that a route leads into takes less than the card, and says so: that route is the finding (NET003).
    astray = {pair for pair, mtu in mtus.items() if mtu.told and _leaves_elsewhere(reached, pair)}
    mtus = {pair: mtu for pair, mtu in mtus.items() if pair not in astray}
    short = {pair for pair in mtus if flows.cut_short(reached.seen[pair])}
    judged = {pair for pair, mtu in mtus.items() if mtu.arrived or pair in short}
    connected = {pair for pair, connect in reached.connects.items() if connect.outcome == "ok"} - astray
    if dark := connected - judged:
        yield _not_seen(dark, connected)
    if not short and judged:
        sizes = sorted({mtus[pair].sent for pair in judged})
        yield fine(Where(), f"packets of {' and '.join(map(str, sizes))} bytes arrive in all {len(judged)} pairs")
    culprits, pairs = blame(short, judged)
    if short and short == judged and len(reached.of_node) > 2:
        culprits, pairs = [], []
        yield _too_long(reached, mtus, sorted(short), Where(), "no full-size packet arrives between any nodes")
    for culprit in culprits:
        yield _by_own_filter(cluster, _odd_mtu(reached, mtus, culprit), culprit.pairs)
    ends = _by_ends(pairs)
    for ways in ends[:_MOST_PAIRS]:
        yield _by_own_filter(cluster, _pair_mtu(reached, mtus, ways, len(ends)), ways)


def _by_own_filter(cluster: Cluster, finding: Finding, ways: Collection[Pair]) -> Finding:
    """The same where an end itself drops what is long."""
    links = {link.node: link for link in lan.links(cluster)}
    own = firewall.stops_a_part({node.name: node for node in cluster.nodes}, ways)
    if own is None or own.node not in links:
        return finding
    by_hand = [remedy for remedy in finding.remedies if remedy.who == "you"]
    return replace(
        finding,
        where=Where(node=own.node, device=links[own.node].interface.name),
        what=f"{own.node} itself {own.words}: {finding.what}",
        owner="node",
        evidence=[*own.evidence, *finding.evidence],
        remedies=[own.fix(str(links[own.node].network)), *by_hand],
    )


def _leaves_elsewhere(reached: Reached, pair: Pair) -> bool:
    """Whether one of the two sends to the other by another interface than the chosen one."""
    ways = [(way, reached.seen.get(way)) for way in (pair, pair[::-1])]
    taken = {way[0]: value_or(peer.interface, "") for way, peer in ways if peer is not None}
    return any(name and name != reached.interface(node) for node, name in taken.items())


def _not_seen(dark: set[Pair], connected: set[Pair]) -> Finding:
    a, b = min(dark)
    return unknown(
        Where(node=a, peer=b) if len(dark) == 1 else Where(),
        f"in {len(dark)} of {len(connected)} pairs no UDP packet of 576 bytes or more came back, so their packet "
        "sizes were not seen",
        why="TCP passes; a filter that drops UDP alone does no harm to NCCL over sockets.",
        owner="site",
        evidence=[seen("UDP without fragmentation", f"no answer from {b} to {a}")],
    )


def _odd_mtu(reached: Reached, mtus: Mapping[Pair, PathMtu], culprit: BadNode) -> Finding:
    node, pairs = culprit.node, sorted(culprit.pairs)
    where = Where(node=node, device=reached.interface(node) or None)
    words = {"in": f"to {node}", "out": f"from {node}", "both": f"to and from {node}"}[culprit.way]
    return _too_long(reached, mtus, pairs, where, f"full-size packets {words} vanish")


def _by_ends(pairs: list[Pair]) -> list[list[Pair]]:
    """The directions between the same two nodes together."""
    by_ends: dict[frozenset[str], list[Pair]] = {}
    for pair in pairs:
        by_ends.setdefault(frozenset(pair), []).append(pair)
    return list(by_ends.values())


def _pair_mtu(reached: Reached, mtus: Mapping[Pair, PathMtu], ways: list[Pair], count: int) -> Finding:
    """Of two nodes, the one whose MTU is not the usual one is likely the odd one; said as such."""
    pair = a, b = ways[0]
    own = {node: reached.of_node[node].mtu for node in pair if node in reached.of_node}
    odd = a if own.get(b) == _STANDARD_MTU and own.get(a) != _STANDARD_MTU else b
    other = b if odd == a else a
    where = Where(node=odd, peer=other, device=reached.interface(odd) or None)
    among = f" (one of {count} such pairs)" if count > 1 else ""
    way = f"between {a} and {b}, both ways," if len(ways) > 1 else f"from {a} to {b}"
    return _too_long(reached, mtus, ways, where, f"full-size packets {way}{among} vanish")


def _too_long(
    reached: Reached, mtus: Mapping[Pair, PathMtu], pairs: list[Pair], where: Where, what: str
) -> Finding:  # fmt: skip
    sent, passes = max(mtus[p].sent for p in pairs), min(mtus[p].arrived for p in pairs)
    bursts = [burst for pair in pairs for burst in reached.seen[pair].bursts]
    by_routers = all(mtus[pair].told for pair in pairs)
    stalled = flows.stalls(bursts) and not by_routers
    nodes = sorted({node for pair in pairs for node in pair})
    own = {node: reached.of_node[node].mtu for node in nodes if node in reached.of_node}
    listed = ", ".join(f"{node} {reached.interface(node)} {mtu}" for node, mtu in list(own.items())[:6])
    level = fail if stalled else warn
    name = reached.interface(where.node or nodes[0]) or "eth0"
    return level(
        where,
        f"{what}: {sent} bytes do not arrive, {passes or 'no size that was tried'} do{'es' * (not passes)}"
        + ("; a burst over TCP stood still" if stalled else ""),
        why=_why(stalled=stalled, by_routers=by_routers),
        owner="node" if where.node else "site",
        evidence=[
            seen("UDP without fragmentation", "; ".join(_shown(mtus, pair) for pair in pairs[:4])),
            seen("MTU of the interfaces", listed + (", ..." if len(own) > 6 else "")),
        ],
        fix=[
            _same_mtu(name, sent, passes, own, where.node),
            you("See what passes.", f"ping -M do -s {max(0, sent - 28)} {reached.address(pairs[0][1])}"),
        ],
    )


def _same_mtu(name: str, sent: int, passes: int, own: Mapping[str, int], node: str | None) -> Remedy:
    """On the odd node; where the nodes agree it is the way between them that takes less."""
    if len(set(own.values())) > 1:
        on, undo = (f"   # on {node}", f"; undo: mtu {own[node]}") if node and node in own else ("", "")
        return admin(
            "Give all nodes and switch ports the same MTU, and keep it in the network configuration. All traffic "
            f"of {name} is touched{undo}.",
            f"ip link set dev {quote(name)} mtu {_wanted(own, passes, node)}{on}",
        )
    return admin(
        f"The nodes agree, so raise the MTU of the switch ports, bridges or tunnels between them to {sent} and "
        "what a tunnel adds; until then give every node of the job what passes. All traffic of "
        f"{name} is touched; undo: mtu {sent}.",
        f"ip link set dev {quote(name)} mtu {passes or _STANDARD_MTU}   # on every node",
    )


def _shown(mtus: Mapping[Pair, PathMtu], pair: Pair) -> str:
    routers = f", routers told {mtus[pair].told}" if mtus[pair].told else ""
    return f"{pair[0]} to {pair[1]}: {mtus[pair].sent} sent, {mtus[pair].arrived} arrived{routers}"


def _why(*, stalled: bool, by_routers: bool) -> str:
    if stalled:
        return "The first large message of a job hangs, while all small ones arrive."
    if by_routers:
        return "A router reported a smaller MTU, so TCP uses smaller packets; RoCE and UDP do not."
    return "TCP between neighbours goes by the smaller MTU; RoCE, UDP and routed TCP hang at the first large one."


def _wanted(own: Mapping[str, int], passes: int, node: str | None) -> int:
    """The MTU that most others have, or what the path carries where all have too much."""
    others = [mtu for name, mtu in own.items() if name != node and mtu]
    usual = max(set(others), key=others.count) if node and others else 0
    return usual if usual not in (0, own.get(node or "")) else passes or _STANDARD_MTU
