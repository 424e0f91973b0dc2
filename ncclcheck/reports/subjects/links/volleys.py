"""Nodes that answer one connection and not several at once: a firewall limits or drops new ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import Node, Unread, Volley, at, replace, value_or
from ncclcheck.reports.judgement.findings import Finding, Remedy, Where, admin, seen, warn, you
from ncclcheck.reports.subjects.links import firewall, flows
from ncclcheck.reports.subjects.links.flows import Loss
from ncclcheck.reports.subjects.links.reached import Pair, Reached

# Of connections that are opened at once this share may be late, and so many: a wire that loses 1 % of its packets,
# the most that NET009 passes over, delays 2 % of them. A limit of one a second delays 3 of 8 or more.
_MOST_PERCENT = 10.0
_LEAST_LATE = 3

# Connections that may wait for a listener; 128 was the kernel's own number before Linux 5.4, 4096 since. Eight are
# opened at once here, from each of up to 8 nodes.
_ENOUGH_WAITING = 64


@dataclass(frozen=True)
class _Slow:
    """Connections in one direction of a node, of which too many were answered late."""

    node: str
    inward: bool
    late: Loss
    pairs: list[Pair]


def findings(
    found: Reached, loss_percent: float, networks: Mapping[str, str], nodes: Mapping[str, Node]
) -> Iterator[Finding]:
    """One for each node that explains connections that were late. Pairs that lose packets are NET009's.

    networks: the subnet of each node. What the node's own kernel says of it is the cause.
    """
    udp = flows.udp_losses(found)
    volleys = {
        pair: peer.volley
        for pair, peer in found.seen.items()
        if not isinstance(peer.volley, Unread)
        and not flows.is_lossy(udp.get(pair), loss_percent)
        and not flows.is_lossy(udp.get((pair[1], pair[0])), loss_percent)
    }
    while worst := _worst(volleys):
        yield _explained(_finding(found, worst, volleys, networks), worst, nodes.get(worst.node), networks)
        volleys = {pair: volley for pair, volley in volleys.items() if pair not in worst.pairs}


def _worst(volleys: Mapping[Pair, Volley]) -> _Slow | None:
    """The node and direction with the largest share; of equal ones what comes in, for there firewalls stand."""
    sums: dict[tuple[str, bool], list[Pair]] = {}
    for a, b in volleys:
        sums.setdefault((b, True), []).append((a, b))
        sums.setdefault((a, False), []).append((a, b))
    slow = [
        _Slow(node, inward, flows.total(Loss(volleys[p].late, volleys[p].opened) for p in pairs), pairs)
        for (node, inward), pairs in sums.items()
    ]
    bad = [one for one in slow if one.late.lost >= _LEAST_LATE and one.late.percent > _MOST_PERCENT]
    return max(bad, key=lambda one: (one.late.percent, one.inward), default=None)


def _explained(told: Finding, slow: _Slow, node: Node | None, networks: Mapping[str, str]) -> Finding:
    """The same, where the node itself does it: by the queue of its listeners, or by a chain of its own filter."""
    if node is None:
        return told
    by_hand = [one for one in told.remedies if one.who == "you"]
    waiting = value_or(at(node, "system.somaxconn"), _ENOUGH_WAITING)
    if slow.inward and waiting < _ENOUGH_WAITING:
        words = f"its kernel lets {waiting} connections wait for a listener (net.core.somaxconn = {waiting})"
        fix = admin(
            "Give it back its usual size, and keep it in /etc/sysctl.d; what listens already must start anew.",
            f"sysctl -w net.core.somaxconn=4096   # on {node.name}",
        )
        said = seen("/proc/sys/net/core/somaxconn", str(waiting))
        return replace(
            told, what=f"{words}: {told.what}", evidence=[said, *told.evidence], remedies=[fix, *by_hand]
        )
    side: firewall.Side = "input" if slow.inward else "output"
    chains = firewall.harmful(node, side)
    near = [networks[node.name]] if node.name in networks else []
    if not chains or not near:
        return told
    words = f"its own packet filter stops some of them ({firewall.shown(chains[0])})"
    shown = [seen(f"nft list ruleset on {node.name}", firewall.shown(one)) for one in chains[:2]]
    fix = firewall.let_pass(chains, side, near[0])
    return replace(told, what=f"{words}: {told.what}", evidence=[*shown, *told.evidence], remedies=[fix, *by_hand])


def _unlimited(slow: _Slow, networks: Mapping[str, str]) -> Iterator[Remedy]:
    """Accepted before the limit is asked."""
    near = [networks[node] for pair in slow.pairs[:1] for node in pair if node in networks]
    if near:
        yield firewall.let_in("Or let the job's nodes in before the limit.", near, slow.node)


def _finding(found: Reached, slow: _Slow, volleys: Mapping[Pair, Volley], networks: Mapping[str, str]) -> Finding:
    way = f"come in to {slow.node}" if slow.inward else f"leave {slow.node}"
    shown = (f"{a} to {b}: {volleys[a, b].late} of {volleys[a, b].opened} late" for a, b in slow.pairs[:4])
    return warn(
        Where(node=slow.node, device=found.interface(slow.node) or None),
        f"new connections are dropped as they {way}: of {slow.late.sent} that were opened at once "
        f"{slow.late.lost} had no answer in 0.8 s, though packets pass",
        why="A job opens hundreds at its start; each that is dropped costs 1, 3, 7 s, and may exceed a time-out.",
        owner="node",
        evidence=[seen("TCP connections at once", "; ".join(shown)), seen("small UDP packets", "not lost")],
        fix=[
            admin(
                "Look for a limit on new connections, here and in the cloud's security group, and lift it for the "
                "job's network.",
                "nft list ruleset | grep -iE 'limit|ct count'",
                "iptables-save | grep -iE 'limit|recent'",
                "nstat -az TcpExtListenDrops TcpExtTCPReqQFullDrop",
            ),
            *_unlimited(slow, networks),
            you("Leave the node out until then.", f"#SBATCH --exclude={quote(slow.node)}"),
        ],
    )
