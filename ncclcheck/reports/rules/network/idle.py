"""Rule about connections that are open and say nothing for a while."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Filter, Node, at, value_or
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fail, fine, seen, warn
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.nccl import lan

# Seconds: an evaluation, a checkpoint or the compilation of a model keeps all connections of a job idle for
# minutes. RFC 5382 asks 2 h 4 min of a NAT; the kernel itself has 5 days. Both chosen.
_ENOUGH_S, _HOPELESS_S = 600, 60
_USUAL_S = 432_000


@rule(
    "NET020",
    "a node's packet filter does not forget connections that are idle",
    worst=State.FAIL,
    needs=("network.interfaces",),
    gates_job="by any failure",
    between_machines=True,
)
def idle_connections(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    For how long the kernel's packet filter knows an open TCP connection on which nothing is sent, on nodes whose
    filter lets known connections pass and drops others.

    ## Why it matters
    The store of torchrun, gloo and NCCL's bootstrap open connections at the start and leave them idle for minutes:
    while a model compiles, in an evaluation, while a checkpoint is written. What the filter has forgotten it drops
    as unknown: the next message never arrives, and the job hangs, or ends with `Connection reset by peer`, though
    every test of new connections passes.

    ## Seen as
    hangs, dies

    ## How we know
    /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established, and the rules (`nft -j list ruleset`,
    iptables-legacy-save): one that accepts the state `established`, in a chain that drops or refuses. Less than 10
    minutes is a warning, less than one a failure unless nf_conntrack_tcp_loose lets a connection that stands be
    taken up again. Firewalls between nodes are not seen.

    ## Fix
    - **admin** `sysctl -w net.netfilter.nf_conntrack_tcp_timeout_established=432000`, the kernel's own, and in
      /etc/sysctl.d; or let the job's network pass before states are asked for.

    ## Source
    The kernel's nf_conntrack-sysctl page; RFC 5382, REQ-5 (2 hours 4 minutes at the least); nft(8), ct state.
    """
    several = max(cluster.job.nodes_asked, len(cluster.nodes)) > 1
    judged = [(node, chains) for node in cluster.nodes if (chains := _stateful(node))]
    if not judged or not several:
        raise NothingToJudge("no node's packet filter is known to ask for states of connections")
    for node, chains in judged:
        seconds = value_or(at(node, "network.forgets_s"), _USUAL_S)
        if seconds >= _ENOUGH_S:
            yield fine(Where(node=node.name), f"idle connections are known for {seconds} s")
        else:
            yield _forgets(cluster, node, chains, seconds)


def _stateful(node: Node) -> list[Filter]:
    """Chains of its own traffic that drop what they do not know."""
    both = [*firewall.harmful(node, "input"), *firewall.harmful(node, "output")]
    return [chain for chain in both if chain.stateful and {"drop", "reject"} & {*chain.does}]


def _forgets(cluster: Cluster, node: Node, chains: list[Filter], seconds: int) -> Finding:
    link = lan.link(node, lan.choice_of_job(cluster, node))
    adopts = value_or(at(node, "network.adopts"), False)
    level = fail if seconds < _HOPELESS_S and not adopts else warn
    name = "net.netfilter.nf_conntrack_tcp_timeout_established"
    return level(
        Where(node=node.name),
        f"its packet filter forgets a connection that is idle for {seconds} s, and drops what it does not know "
        f"({firewall.shown(chains[0])})",
        why="Connections of a job are idle for minutes; the next message is lost, and the job hangs or is reset.",
        owner="node",
        evidence=[
            seen(f"/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established of {node.name}", str(seconds)),
            *(firewall.on_node(node.name, chain) for chain in chains[:2]),
        ],
        fix=[
            admin(
                "Let it know them for longer; the same in /etc/sysctl.d. Undo: the same with what it was.",
                f"sysctl -w {name}={_USUAL_S}   # on {node.name}",
            ),
            *([firewall.let_pass(chains, "input", str(link.network))] if link else []),
        ],
    )
