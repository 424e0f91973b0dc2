"""Connections to a rank that its peers saw end while the process lives: not it ended them, the network did."""

from __future__ import annotations

from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster, RankState
from ncclcheck.reports.judgement.findings import Finding, Where, admin, fail, seen, you
from ncclcheck.reports.subjects.failures import lost
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import fold_names, fold_ranks


@dataclass(frozen=True)
class CutNode:
    """alive: the ranks of the one node that the others name; by: those whose connections to them ended."""

    node: str
    alive: list[RankState]
    by: list[RankState]

    @property
    def words(self) -> str:
        """What was seen of both ends."""
        return (
            f"connections of {fold_ranks([rank.rank for rank in self.by])} on "
            f"{fold_names(rank.node for rank in self.by)} to {self.node} ended in mid-run while "
            f"{fold_ranks([rank.rank for rank in self.alive])} there lived and still waited: not the process but "
            "something on the path resets what stands"
        )


def cut_node(cluster: Cluster, late: list[RankState]) -> CutNode | None:
    """Where the others agree on the node, and nothing there died, stopped or raised anything."""
    left, blamed = lost.left(cluster, late), lost.first_dead(cluster, late)
    if not left or len(cluster.nodes) < 2 or any(not rank.error or not lost.in_vain(rank) for rank in blamed):
        return None
    node = left[0].node
    if node in {silence.node for silence in cluster.run.silent}:
        return None  # its agent is lost too, so nobody knows what its ranks did when the connections ended
    alive = [rank for rank in late if rank.node == node]
    by = [rank for rank in late if rank.node != node and rank.error and lost.in_vain(rank)]
    return CutNode(node, alive, by) if by and all(map(lost.lives, alive)) else None


def finding(cluster: Cluster, cut: CutNode) -> Finding:
    """With the node's own rule where one of its filters explains it."""
    nodes = {node.name: node for node in cluster.nodes}
    ways = [way for name in {rank.node for rank in cut.by} for way in ((name, cut.node), (cut.node, name))]
    own = firewall.stops_a_part(nodes, ways)
    links = {link.node: link for link in lan.links(cluster)}
    peer = cut.by[0].node if len({rank.node for rank in cut.by}) == 1 else None
    more = f"; {own.node} {own.words}" if own else ""
    log = "journalctl --since -15min | grep -iE 'firewall|nft|iptables|reset|link|carrier' | tail"
    return fail(
        Where(node=own.node if own else cut.node, peer=None if own else peer),
        f"{cut.words}{more}",
        why="A filter, an inspecting firewall or a load balancer that resets open connections ends every job.",
        owner="site",
        evidence=[
            *(seen(f"rank {rank.rank} on {rank.node}", lost.last_line(rank.error)) for rank in cut.by[:8]),
            *(seen(f"rank {rank.rank} on {rank.node}", f"pid {rank.pid}, state {rank.proc_state}, no error")
              for rank in cut.alive[:8]),
            *(own.evidence if own else ()),
        ],
        fix=[
            *([own.fix(str(links[own.node].network))] if own and own.node in links else []),
            admin(
                "See which rule resets or limits connections that stand.",
                f"nft list ruleset | grep -nE 'reset|reject|bytes|quota|limit'   # on {cut.node}",
                f"{log}   # on {cut.node}",
                f"nstat -az TcpEstabResets TcpOutRsts   # on {cut.node}",
            ),
            you("Run it again: if the same node is named again, it is no chance.", "ncclcheck bench"),
        ],
    )  # fmt: skip
