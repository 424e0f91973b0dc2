"""Counts that the site requires (`--require gpu=8,hca=8`): what is unread counts as missing."""

from __future__ import annotations

from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster, Unread
from ncclcheck.reports.judgement.findings import Finding, Remedy, Where, fail, seen
from ncclcheck.reports.judgement.rule import NothingToJudge


@dataclass(frozen=True)
class RequiredCount:
    """How many of a thing a node has, and where that stands."""

    node: str
    thing: str
    wanted: int
    actual: int | Unread
    source: str

    @property
    def enough(self) -> bool:
        """Whether as many were seen as are required."""
        return not isinstance(self.actual, Unread) and self.actual >= self.wanted

    @property
    def where(self) -> Where:
        """The node."""
        return Where(node=self.node)


def required(cluster: Cluster, what: str) -> int:
    """The required count. Raises NothingToJudge where nothing is required."""
    counts = [r.count for r in cluster.policy.require if r.what == what and r.count is not None]
    if not counts:
        raise NothingToJudge("nothing required")
    return max(counts)


def too_few(count: RequiredCount, *, why: str, fix: list[Remedy]) -> Finding:
    """The failure of one node."""
    number = count.actual
    if isinstance(number, Unread):
        what, value = f"none of the {count.wanted} required {count.thing}s is there: {number.why}", number.why
        if number.kind != "absent":
            what = (
                f"how many of the {count.wanted} required {count.thing}s are there could not be read: {number.why}"
            )
    else:
        what, value = f"only {number} of the {count.wanted} required {count.thing}s are there", str(number)
    evidence = [seen(count.source, value), seen("required", count.wanted)]
    return fail(count.where, what, why=why, owner="node", evidence=evidence, fix=fix)
