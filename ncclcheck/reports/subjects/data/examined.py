"""What nodes saw of the user's dataset, for rules: those whose facts are known, and a word on the others."""

from __future__ import annotations

from ncclcheck.probes.facts import Cluster, Unread
from ncclcheck.probes.facts.data import Content, DataReport, DataResources, Made, Speed
from ncclcheck.reports.judgement.findings import Finding, Where, not_read
from ncclcheck.reports.judgement.rule import NothingToJudge


def resources(cluster: Cluster, *needs: str) -> tuple[list[tuple[str, DataResources]], list[Finding]]:
    """Node by node, where all of these facts are known; what could not be read. Raises NothingToJudge."""
    looked = [
        (report.node, report.resources) for report in cluster.measurements.data if report.resources is not None
    ]
    if not looked:
        raise NothingToJudge(why_not(cluster.measurements.data, "resources"))
    gaps = [(node, need, fact) for node, facts in looked if (gap := _gap(facts, needs)) for need, fact in [gap]]
    lacking = {node for node, _, _ in gaps}
    if len(lacking) == len(looked) and all(fact.kind == "absent" for _, _, fact in gaps):
        raise NothingToJudge(gaps[0][2].why)
    unread = [_unread(node, need, fact) for node, need, fact in gaps if fact.kind != "absent"]
    return [(node, facts) for node, facts in looked if node not in lacking], unread


def growth_unseen(report: DataReport) -> str:
    """Why it was not seen what reading leaves behind, where the process that looked gave no answer."""
    again = report.resources.again if report.resources else None
    return again.why if isinstance(again, Unread) and again.kind == "absent" else ""


def speeds(cluster: Cluster) -> list[tuple[str, Speed]]:
    """Node by node. Raises NothingToJudge."""
    looked = [(report.node, report.speed) for report in cluster.measurements.data if report.speed is not None]
    if not looked:
        raise NothingToJudge(why_not(cluster.measurements.data, "speed"))
    return looked


def contents(cluster: Cluster) -> list[tuple[str, Made, Content]]:
    """Node by node, what the factory gave and what was seen of its samples. Raises NothingToJudge."""
    looked = [
        (report.node, report.made or Made(), report.content)
        for report in cluster.measurements.data
        if report.content
    ]
    if not looked:
        raise NothingToJudge(why_not(cluster.measurements.data, "content"))
    return looked


def samples(cluster: Cluster) -> list[tuple[str, Made, Content]]:
    """The same, of nodes on which samples could be read. Raises NothingToJudge."""
    readable = [(node, made, content) for node, made, content in contents(cluster) if content.leaves]
    if not readable:
        raise NothingToJudge("no sample could be read")
    return readable


def why_not(reports: list[DataReport], aspect: str) -> str:
    """Why nobody looked at an aspect."""
    reasons = [entry.why for report in reports for entry in report.unseen if entry.aspect == aspect]
    return reasons[0] if reasons else "no dataset was examined"


def _gap(facts: DataResources, needs: tuple[str, ...]) -> tuple[str, Unread] | None:
    return next(((need, fact) for need in needs if type(fact := getattr(facts, need)) is Unread), None)


def _unread(node: str, need: str, fact: Unread) -> Finding:
    return not_read(Where(node=node), need, fact)
