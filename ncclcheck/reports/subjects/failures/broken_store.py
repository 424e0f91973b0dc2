"""A torchrun that lost its open connection to the store on node 0, and ended its own ranks because of that."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster, JobEnd
from ncclcheck.probes.facts.run.course import STOPPED
from ncclcheck.reports.judgement.findings import Finding, Where, admin, fail, seen, you
from ncclcheck.reports.subjects.failures import lost
from ncclcheck.reports.text.words.fold import fold_names

# Of torch's elastic agent: the store answered when it met the others, and does not any more.
_LOST_STORE = re.compile(r"RendezvousConnectionError|connection to the C10d store has failed")


@dataclass(frozen=True)
class BrokenStore:
    """ends: of the nodes that lost it, while the torchrun of node 0 and maybe of others went on."""

    first: str
    ends: list[JobEnd]


def lost_store(cluster: Cluster) -> BrokenStore | None:
    """Not where node 0 was lost itself: then every other node says so."""
    run = cluster.run
    if len(cluster.nodes) < 2 or run.silent:
        return None
    first = cluster.nodes[0].name
    gone = {end.node for end in run.ends if end.exit is None and not end.detail}
    ends = [end for end in run.ends if _LOST_STORE.search(end.detail) and end.node != first]
    started = {rank.node for rank in run.ranks if rank.last_step}
    broken = [end for end in ends if end.node in started and (end.exit is None or end.exit > 0)]
    went_on = first in gone and not any(_is_lost(cluster, first))
    return BrokenStore(first, broken) if broken and went_on else None


def _is_lost(cluster: Cluster, node: str) -> list[bool]:
    ranks = [rank for rank in cluster.run.ranks if rank.node == node]
    return [bool(rank.error) or rank.exit is not None or rank.proc_state in ("gone", *STOPPED) for rank in ranks]


def finding(broken: BrokenStore) -> Finding:
    """Who ended it is not seen; that it was ended, and that new ones pass, is."""
    names = fold_names(end.node for end in broken.ends)
    node = broken.ends[0].node
    return fail(
        Where(node=node if len(broken.ends) == 1 else None, peer=broken.first),
        f"the open connection of {names} to torchrun's store on {broken.first} broke in mid-run, and torchrun "
        "there ended its ranks: something ended what stood, and lets new connections pass",
        why="A filter that forgets or resets open connections, or an interface that went away for a moment, ends "
        "every job sooner or later.",
        owner="site",
        evidence=[
            *(
                seen(f"torchrun on {end.node}", lost.last_line(end.detail))
                for end in broken.ends[: lost.MOST_TOLD]
            ),
            *([seen(f"torchrun on {broken.first}", "went on")]),
        ],
        fix=[
            admin(
                "See whether a packet filter there was loaded anew meanwhile, refuses what stands, or forgets it.",
                f"nft list ruleset | grep -nE 'reset|invalid|established|drop'   # on {node} and {broken.first}",
                f"sysctl net.netfilter.nf_conntrack_tcp_timeout_established   # on {node}; 432000 is usual",
                f"journalctl --since -15min | grep -iE 'firewall|nft|iptables|link|carrier' | tail   # on {node}",
                f"nstat -az TcpEstabResets TcpExtTCPAbortOnTimeout   # on {node}",
            ),
            you("Run it again: the same node again says that it is no chance.", "ncclcheck bench"),
        ],
    )
