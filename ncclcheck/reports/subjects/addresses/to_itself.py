"""Nodes that do not reach their own address: the ranks of one node, and rank 0 its own store, call by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ncclcheck.probes.facts import Cluster, Connect, Node, NodeReach, at, value_or, variables
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.judgement.findings import Finding, Remedy, Where, admin, fail, seen, you
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.subjects.nccl.variables import STARTUP_FILES

_CHAINS = (
    'awk \'/^table/{t=$2" "$3} /chain/{c=$2} /filter hook (input|output)/{print ($4=="input"?"iif":"oif"), t,c}\''
)
_BAD = ("timed_out", "unreachable", "refused", "not_sent")


def findings(cluster: Cluster, links: Mapping[str, lan.LanPlace]) -> Iterator[Finding]:
    """One for each of them."""
    nodes = {node.name: node for node in cluster.nodes}
    for reach in cluster.measurements.reach:
        own = reach.own
        if reach.node not in links or not isinstance(own, Connect) or own.outcome not in _BAD:
            continue
        node = nodes[reach.node]
        if library := preloaded(cluster).get(reach.node):
            yield _by_a_library(reach, own, library)
            continue
        lo = [interface for interface in lan.interfaces(node) if interface.kind == "loopback"]
        down = bool(lo) and all(interface.up is False for interface in lo)
        why = "its interface lo is down" if down else f"what it sends to itself by lo is lost{_filters(node)}"
        yield fail(
            Where(node=reach.node, device="lo"),
            f"{reach.node} cannot connect to its own address {reach.address}: {why}",
            why="Rank 0 connects to its own store by this address, and so do the ranks of one node to each other; "
            "other nodes reach it, so that only this node's ranks wait.",
            owner="node",
            evidence=[seen(f"TCP connect from {reach.node} to itself", own.detail or own.outcome)],
            fix=[_up(reach.node) if down else _let_pass(reach.node)],
        )


@derived
def preloaded(cluster: Cluster) -> dict[str, str]:
    """LD_PRELOAD by node, where that node alone has it, and each of its connections is refused, also to itself.

    Such a library (proxychains, tsocks) leads all of them to a proxy. Nothing where a packet filter may do it.
    """
    nodes = {node.name: node for node in cluster.nodes}
    return {
        reach.node: library
        for reach in cluster.measurements.reach
        if reach.node in nodes and _all_refused(reach) and (library := _own_library(cluster, nodes[reach.node]))
    }


def _all_refused(reach: NodeReach) -> bool:
    tried = [reach.own, *(peer.connect for peer in reach.peers)]
    return bool(reach.peers) and all(
        isinstance(connect, Connect) and connect.outcome == "refused" for connect in tried
    )


def _own_library(cluster: Cluster, node: Node) -> str:
    others = {variables(other).get("LD_PRELOAD") for other in cluster.nodes if other is not node}
    library = variables(node).get("LD_PRELOAD", "")
    stopped = firewall.harmful(node, "input") or firewall.harmful(node, "output")
    return library if others and library not in others and not stopped else ""


def _by_a_library(reach: NodeReach, own: Connect, library: str) -> Finding:
    return fail(
        Where(node=reach.node),
        f"LD_PRELOAD={library}, which no other node has: every TCP connection that programs of {reach.node} open "
        "is refused, to itself and to all others",
        why="A library that is loaded into each program can lead its connections elsewhere (proxychains, tsocks), "
        "so that no rank there reaches another.",
        owner="job",
        evidence=[
            seen(f"TCP connect from {reach.node} to itself", own.detail or own.outcome),
            seen(f"TCP connect from {reach.node}", f"refused by {len(reach.peers)} of {len(reach.peers)} nodes"),
        ],
        fix=[
            you(
                "Take it out, in the shell and where it is set at login.",
                f"unset LD_PRELOAD   # on {reach.node}",
                f"grep -s LD_PRELOAD {STARTUP_FILES} -r   # on {reach.node}",
            )
        ],
    )


def _filters(node: Node) -> str:
    if value_or(at(node, "network.filters"), []):
        filters = [*firewall.harmful(node, "input"), *firewall.harmful(node, "output")]
        return f" ({firewall.shown(filters[0])})" if filters else ""
    return ", most often by its own packet filter"


def _up(node: str) -> Remedy:
    return admin("Bring it up.", f"ip link set dev lo up   # on {node}")


def _let_pass(node: str) -> Remedy:
    return admin(
        "Let the host talk to itself. Only the line of the tool that keeps the rules there has an effect, until "
        "they are loaded again: then put the same into its own file.",
        "nft list ruleset | grep -nE 'table|chain|hook|drop|reject|lo'   # on " + node,
        f"nft list chains | {_CHAINS} | while read w c; do nft insert rule $c $w lo accept; done   # on {node}",
        f"iptables -I INPUT -i lo -j ACCEPT; iptables -I OUTPUT -o lo -j ACCEPT   # on {node}",
    )
