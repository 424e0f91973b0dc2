"""The document of `report --compare -o json`: both ends, what differs, and the exit code."""

from __future__ import annotations

from typing import Literal

import msgspec

from ncclcheck.probes.facts import Baseline
from ncclcheck.reports.compare.changes import FactChange
from ncclcheck.reports.compare.comparison import Comparison, compare
from ncclcheck.reports.compare.fingerprint import Fingerprint, fingerprint
from ncclcheck.reports.compare.rows import RowChange
from ncclcheck.reports.judgement.jsondoc import printable


class ComparedEnd(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two results."""

    file: str
    command: str
    started: str
    nodes: list[str]
    fingerprint: Fingerprint


class ComparisonResult(Comparison, frozen=True, kw_only=True):
    """A comparison with its two ends. state: worse where anything is; exit_code: 1 then."""

    schema: int = 1
    version: str
    command: Literal["compare"] = "compare"
    state: Literal["worse", "ok"]
    exit_code: int
    before: ComparedEnd
    after: ComparedEnd

    def rows_of(self, verdict: str) -> list[RowChange]:
        """The rows of one verdict."""
        return [row for row in self.rows if row.verdict == verdict]

    def changes_of(self, verdict: str) -> list[FactChange]:
        """The changes of one verdict."""
        return [change for change in self.changes if change.verdict == verdict]


def result(before: Baseline, after: Baseline, version: str, thresholds: dict[str, float]) -> ComparisonResult:
    """Compare two saved results."""
    comparison = compare(before.cluster, after.cluster, thresholds)
    return ComparisonResult(
        version=version,
        state="worse" if comparison.worse else "ok",
        exit_code=1 if comparison.worse else 0,
        before=_end(before),
        after=_end(after),
        **{name: getattr(comparison, name) for name in Comparison.__struct_fields__},
    )


def encode(comparison: ComparisonResult) -> bytes:
    """One line of JSON with its newline."""
    return printable(msgspec.json.encode(comparison)) + b"\n"


def _end(saved: Baseline) -> ComparedEnd:
    cluster = saved.cluster
    return ComparedEnd(
        file=saved.name,
        command=cluster.command,
        started=saved.started,
        nodes=[node.name for node in cluster.nodes],
        fingerprint=fingerprint(cluster),
    )
