"""Facts of all nodes that should be the same, for rules about the agreement of machines."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping

from ncclcheck.probes.facts import Cluster, Node, at, known
from ncclcheck.reports.judgement.findings import Finding, Owner, Remedy, warn, you
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements
from ncclcheck.reports.text.words.fold import size

LEAVE_OUT = you("Leave the node out until then.", "#SBATCH --exclude=NODE")
# sizes this near the median are one: firmware and kernel keep a part of the RAM for themselves; chosen
_NEAR_SHARE = 0.05


def same(
    cluster: Cluster,
    subject: str,
    source: str,
    read: Callable[[Node], str],
    *,
    why: str,
    fix: list[Remedy],
    owner: Owner = "node",
    level: Callable[..., Finding] = warn,
) -> Iterator[Finding]:
    """The findings of one fact, as `read` takes it from each node."""
    values = {node.name: read(node) for node in cluster.nodes}
    yield from disagreements(values, subject, source, level=level, why=why, owner=owner, fix=fix)


def fact(path: str) -> Callable[[Node], str]:
    """Reads one fact that the rule's `needs=` has asked for."""
    return lambda node: str(known(at(node, path)))


def alike(sizes: Mapping[str, int]) -> dict[str, str]:
    """Sizes in words; those within 5 % of the median are called like it."""
    middle = statistics.median_low(sizes.values())
    return {
        name: size(middle if abs(own - middle) <= _NEAR_SHARE * middle else own) for name, own in sizes.items()
    }
