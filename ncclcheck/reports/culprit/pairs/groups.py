"""Nodes that are known to stand behind one switch: from what Slurm and NVLink say of their place."""

from __future__ import annotations

from ncclcheck.probes.facts import Cluster, variables

_DEEPEST = 8  # levels of switches in SLURM_TOPOLOGY_ADDR: more than any real tree; bounds hostile input


def known_groups(cluster: Cluster) -> list[frozenset[str]]:
    """Every level of Slurm's topology at which nodes differ."""
    by_switch: dict[str, set[str]] = {}
    for node in cluster.nodes:
        switches = variables(node).get("SLURM_TOPOLOGY_ADDR", "").split(".")[:-1]
        for depth in range(min(_DEEPEST, len(switches))):
            by_switch.setdefault(".".join(switches[: depth + 1]), set()).add(node.name)
    several = (frozenset(names) for names in by_switch.values() if 2 <= len(names) < len(cluster.nodes))
    return list(dict.fromkeys(several))
