"""Two clusters: nodes are matched, then rows and facts compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec import Struct

from ncclcheck.probes.facts import Cluster, Node, at
from ncclcheck.reports.compare.changes import FactChange, changes, together
from ncclcheck.reports.compare.fingerprint import FieldDifference, differences, fingerprint
from ncclcheck.reports.compare.rows import FLOOR_PERCENT, SIMULATED_FLOOR_PERCENT, RowChange, compare_rows


class Comparison(Struct, frozen=True, kw_only=True):
    """What compare found. silent: nodes that answered before and did not now; gone: those not asked now."""

    differences: list[FieldDifference]
    rows: list[RowChange]
    changes: list[FactChange]
    new: list[str]
    gone: list[str]
    silent: list[str]

    @property
    def worse(self) -> bool:
        """Whether anything is worse than before."""
        verdicts = {*(row.verdict for row in self.rows), *(change.verdict for change in self.changes)}
        return bool(self.silent) or "worse" in verdicts


def compare(before: Cluster, after: Cluster, thresholds: Mapping[str, float] | None = None) -> Comparison:
    """Rows and facts of two results; nodes are matched by name, else by host name."""
    matched = dict(_matched(before.nodes, after.nodes))
    silent = set(after.job.missing) | {silence.node for silence in after.run.silent}
    lost = [node.name for node in before.nodes if node.name not in matched]
    known = {node.name for node in matched.values()}
    return Comparison(
        differences=differences(fingerprint(before), fingerprint(after)),
        rows=rows_of(before, after, thresholds or {}),
        changes=changes_of(before, after),
        new=[node.name for node in after.nodes if node.name not in known],
        gone=[name for name in lost if name not in silent],
        silent=[name for name in lost if name in silent],
    )


def rows_of(before: Cluster, after: Cluster, thresholds: Mapping[str, float]) -> list[RowChange]:
    """The rows of two benches; none is compared where hardware or shape are not the same."""
    unequal = differences(fingerprint(before), fingerprint(after))
    differs = "; ".join(str(difference) for difference in unequal if difference.kind != "software")
    floor = floor_percent(after, thresholds)
    return compare_rows(before.measurements.collectives, after.measurements.collectives, differs, floor)


def floor_percent(after: Cluster, thresholds: Mapping[str, float]) -> float:
    """Per cent by which two runs of one cluster may differ."""
    usual = SIMULATED_FLOOR_PERCENT if after.job.simulated else FLOOR_PERCENT
    return thresholds.get("BEN006.floor_percent", usual)


def changes_of(before: Cluster, after: Cluster) -> list[FactChange]:
    """Every fact that changed on a node that both know; the same change of many nodes is one."""
    later = {node.name: node for node in before.nodes}
    matched = _matched(before.nodes, after.nodes)
    return together(change for name, node in matched for change in changes(later[name], node))


def _matched(before: list[Node], after: list[Node]) -> Iterator[tuple[str, Node]]:
    """Earlier names with the later nodes. A launcher may have named a node otherwise: the host name then tells."""
    named = {node.name: node for node in after}
    unmatched = [node for node in before if node.name not in named]
    names = {node.name for node in before}
    hosts = _by_host([node for node in after if node.name not in names])
    lost_hosts = _by_host(unmatched)
    for node in before:
        if node.name in named:
            yield node.name, named[node.name]
        elif (host := at(node, "host.hostname")) in hosts and host in lost_hosts:
            yield node.name, hosts[host]


def _by_host(nodes: list[Node]) -> dict[object, Node]:
    """Nodes by a host name that no other one has."""
    known = [(host, node) for node in nodes if isinstance(host := at(node, "host.hostname"), str)]
    often = Counter(host for host, _ in known)
    return {host: node for host, node in known if often[host] == 1}
