"""Nodes that answer one connection and not several at once: a firewall limits or drops new ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import Cluster, Node, Unread, Volley, at, replace, value_or
from ncclcheck.reports.judgement.findings import Finding, Remedy, Where, admin, fail, seen, warn, you
from ncclcheck.reports.subjects.links import flows
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.links.flows import PacketLoss
from ncclcheck.reports.subjects.links.reached import Pair, Reached, reached

# Of connections that are opened at once this share may be late, and so many: a wire that loses 1 % of its packets,
# the most that NET009 passes over, delays 2 % of them. A limit of one a second delays 3 of 8 or more.
_MOST_PERCENT = 10.0
_LEAST_LATE = 3  # connections, see above

# Connections that may wait for a listener; 128 was the kernel's own number before Linux 5.4, 4096 since. Eight are
# opened at once here, from each of up to 8 nodes.
_ENOUGH_WAITING = 64


@dataclass(frozen=True)
class _SlowVolleys:
    """Connections in one direction of a node, of which too many were refused or answered late."""

    node: str
    inward: bool
    late: PacketLoss
    refused: int
    volleys: dict[Pair, Volley]

    @property
    def pairs(self) -> list[Pair]:
        """The directions that they went."""
        return [*self.volleys]


def findings(
    reach: Reached,
    loss_percent: float,
    networks: Mapping[str, str],
    nodes: Mapping[str, Node],
    *,
    in_vain: bool = False,
) -> Iterator[Finding]:
    """One for each node that explains connections that were late. Pairs that lose packets are NET009's.

    networks: the subnet of each node. What the node's own kernel says of it is the cause. in_vain: the job did not
    come to its end, and no rank or host was lost: this is why.
    """
    for slow_one in _slow_ones(reach, loss_percent):
        finding = _explained(_finding(reach, slow_one, networks), slow_one, nodes.get(slow_one.node), networks)
        yield _of_the_job(finding) if in_vain else finding


def stops_a_job(cluster: Cluster, loss_percent: float) -> bool:
    """Whether connections that some node refuses or drops explain a job that waited in vain."""
    reach = reached(cluster)
    return reach is not None and any(True for _ in _slow_ones(reach, loss_percent))


def _slow_ones(reach: Reached, loss_percent: float) -> Iterator[_SlowVolleys]:
    """The worst first; its pairs are left out for the next."""
    udp = flows.udp_losses(reach)
    volleys = {
        pair: peer.volley
        for pair, peer in reach.seen.items()
        if not isinstance(peer.volley, Unread)
        and not flows.is_lossy(udp.get(pair), loss_percent)
        and not flows.is_lossy(udp.get((pair[1], pair[0])), loss_percent)
    }
    while worst := _worst(volleys):
        yield worst
        volleys = {pair: volley for pair, volley in volleys.items() if pair not in worst.pairs}


def _worst(volleys: Mapping[Pair, Volley]) -> _SlowVolleys | None:
    """The node and direction with the largest share; of equal ones what comes in, for there firewalls stand."""
    sums: dict[tuple[str, bool], list[Pair]] = {}
    for a, b in volleys:
        sums.setdefault((b, True), []).append((a, b))
        sums.setdefault((a, False), []).append((a, b))
    slow = [
        _SlowVolleys(
            node,
            inward,
            flows.total(PacketLoss(volleys[p].late + volleys[p].refused, volleys[p].opened) for p in pairs),
            sum(volleys[p].refused for p in pairs),
            {pair: volleys[pair] for pair in pairs},
        )
        for (node, inward), pairs in sums.items()
    ]
    bad = [
        candidate
        for candidate in slow
        if candidate.late.lost >= _LEAST_LATE and candidate.late.percent > _MOST_PERCENT
    ]
    return max(bad, key=lambda candidate: (candidate.late.percent, candidate.inward), default=None)


def _explained(finding: Finding, slow: _SlowVolleys, node: Node | None, networks: Mapping[str, str]) -> Finding:
    """The same, where the node itself does it: by the queue of its listeners, or by a chain of its own filter."""
    if node is None:
        return finding
    by_hand = [remedy for remedy in finding.remedies if remedy.who == "you"]
    waiting = value_or(at(node, "system.somaxconn"), _ENOUGH_WAITING)
    if slow.inward and waiting < _ENOUGH_WAITING:
        words = f"its kernel lets {waiting} connections wait for a listener (net.core.somaxconn = {waiting})"
        fix = admin(
            "Give it back its usual size, and keep it in /etc/sysctl.d; what listens already must start anew.",
            f"sysctl -w net.core.somaxconn=4096   # on {node.name}",
        )
        evidence = seen("/proc/sys/net/core/somaxconn", str(waiting))
        return replace(
            finding,
            what=f"{words}: {finding.what}",
            evidence=[evidence, *finding.evidence],
            remedies=[fix, *by_hand],
        )
    side: firewall.Side = "input" if slow.inward else "output"
    counting = firewall.limiting(node, side)
    chains = counting or firewall.harmful(node, side)
    near = [networks[node.name]] if node.name in networks else []
    if not chains or not near:
        return finding
    show = firewall.part if counting else firewall.shown
    words = f"a rule of its own packet filter limits new connections ({show(chains[0])})"
    shown = [firewall.on_node(node.name, chain, show(chain)) for chain in chains[:2]]
    fix = firewall.let_pass(chains, side, near[0])
    return replace(
        finding, what=f"{words}: {finding.what}", evidence=[*shown, *finding.evidence], remedies=[fix, *by_hand]
    )


def _unlimited(slow: _SlowVolleys, networks: Mapping[str, str]) -> Iterator[Remedy]:
    """Accepted before the limit is asked."""
    near = [networks[node] for pair in slow.pairs[:1] for node in pair if node in networks]
    if near:
        yield firewall.let_in("Or let the job's nodes in before the limit.", near, slow.node)


def _of_the_job(finding: Finding) -> Finding:
    """The same after a job that waited in vain."""
    what = f"{finding.what}; the job then waited for connections until its end"
    return fail(
        finding.where, what, why=finding.why, owner=finding.owner, evidence=finding.evidence, fix=finding.remedies
    )


def _finding(reach: Reached, slow: _SlowVolleys, networks: Mapping[str, str]) -> Finding:
    way = f"come in to {slow.node}" if slow.inward else f"leave {slow.node}"
    shown = (
        f"{a} to {b}: {volley.late} of {volley.opened} late" + f", {volley.refused} refused" * bool(volley.refused)
        for (a, b), volley in list(slow.volleys.items())[:4]
    )
    refused = slow.refused == slow.late.lost
    does, fate = ("refused", "were refused") if refused else ("dropped", "had no answer in 0.8 s")
    if slow.refused and not refused:
        fate = f"had no answer in 0.8 s, or were refused ({slow.refused})"
    return warn(
        Where(node=slow.node, device=reach.interface(slow.node) or None),
        f"new connections are {does} as they {way}: of {slow.late.sent} that were opened at once "
        f"{slow.late.lost} {fate}, though packets pass",
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
