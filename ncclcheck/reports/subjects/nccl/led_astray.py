"""A variable that one node has and the others do not, and that leads its job to another network than theirs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import Cluster, Node
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.judgement.findings import Remedy, you
from ncclcheck.reports.subjects.nccl import lan, variables
from ncclcheck.reports.text.words.fold import fold_names

_NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True)
class Astray:
    """words: `NAME=value, which h1 does not have, chooses mgmt0 (10.78.0.22) in 10.78.0.0/24`."""

    node: str
    name: str
    words: str

    @property
    def fix(self) -> Remedy:
        """As all others have it."""
        return you(
            "Take the variable out there: the others go without it.",
            f"unset {self.name}   # on {quote(self.node)}",
        )


@derived
def astray_nodes(cluster: Cluster) -> dict[str, Astray]:
    """By node, where a variable of its own leads away from the network that most nodes, and it too, are in."""
    links = {link.node: link for link in lan.links(cluster)}
    usual, count = Counter(link.network for link in links.values()).most_common(1)[0] if links else (None, 0)
    if usual is None or 2 * count <= len(links):
        return {}
    nodes = [node for node in cluster.nodes if node.name in links and links[node.name].network != usual]
    astrays = (_astray(cluster, node, links[node.name]) for node in nodes if _is_in(node, usual))
    return {astray.node: astray for astray in astrays if astray}


def _is_in(node: Node, network: lan.IPNetwork) -> bool:
    return any(own == network for interface in lan.interfaces(node) if lan.is_usable(interface)
               for _, own in lan.global_networks(interface))  # fmt: skip


def _astray(cluster: Cluster, node: Node, link: lan.LanPlace) -> Astray | None:
    own, reason = variables.values(node), lan.choice_of_job(cluster, node).reason
    for name in _NAMES:
        if name not in own or name not in reason:
            continue
        others = [
            other.name for other in cluster.nodes if other is not node and name not in variables.values(other)
        ]
        if len(others) == len(cluster.nodes) - 1:
            lack = "does" if len(others) == 1 else "do"
            return Astray(
                node.name,
                name,
                f"{name}={own[name]}, which {fold_names(others)} {lack} not have, chooses {link.interface.name} "
                f"({link.address}) in {link.network}",
            )
    return None
