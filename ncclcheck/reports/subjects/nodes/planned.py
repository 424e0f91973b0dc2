"""How many ranks run on a node."""

from __future__ import annotations

from ncclcheck.probes.facts import Cluster, Node, at, value_or, variables


def local_ranks(cluster: Cluster, node: Node) -> int:
    """As this run planned them; without a job, as the environment says, and else one for each usable GPU.

    LOCAL_WORLD_SIZE comes last of what is known: in a shell it is a leftover of another job.
    """
    planned = cluster.job.ranks // max(1, cluster.job.nodes_asked)
    given = variables(node).get("LOCAL_WORLD_SIZE", "")
    number = int(given) if given.isdecimal() and len(given) < 6 else 0
    return max(1, planned or number or value_or(at(node, "gpus.usable"), 0))
