"""What the rules of settings would say of one setting, before it is tried. Pure."""

from __future__ import annotations

from ncclcheck.probes.facts import Cluster, JobFacts, Node, Unread, Variable, replace
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules


def foreseen(cluster: Cluster, name: str, value: str | None) -> list[Finding]:
    """The failures and warnings that come with it."""
    before = {(finding.where, finding.what) for finding in _told(cluster)}
    after = replace(cluster, nodes=[_with(node, name, value) for node in cluster.nodes])
    return [finding for finding in _told(after) if (finding.where, finding.what) not in before]


def _told(cluster: Cluster) -> list[Finding]:
    verdicts = judge(cluster, [rule for rule in all_rules() if rule.of_one_setting])
    return [finding for v in verdicts for finding in v.findings if finding.state in (State.FAIL, State.WARN)]


def _with(node: Node, name: str, value: str | None) -> Node:
    """The node as if its job had the setting."""
    if not isinstance(node.job, JobFacts) or isinstance(node.job.variables, Unread):
        return node
    others = [variable for variable in node.job.variables if variable.name != name]
    given = [] if value is None else [Variable(name=name, value=value)]
    return replace(node, job=replace(node.job, variables=[*others, *given]))
