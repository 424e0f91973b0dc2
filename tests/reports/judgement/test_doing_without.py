"""Leaving a node out is said in the words of the launcher at hand, for all nodes of a rule in one go."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts import Cluster, Job, Node
from ncclcheck.reports.judgement.findings import Finding, State, Verdict, Where, seen, warn, you
from ncclcheck.reports.subjects.nodes.fixes.doing_without import fitted

_NODES = [Node(name=f"g{number}") for number in (1, 2, 3, 4)]


def _slow(name: str, line: str = "#SBATCH --exclude=NODE") -> Finding:
    return warn(
        Where(node=name), "slow", why="w", owner="node", evidence=[seen("a", 1)], fix=[you("Leave it out.", line)]
    )


def _lines(launcher: str, *findings: Finding) -> set[str]:
    cluster = Cluster(nodes=_NODES, job=Job(launcher=launcher))  # type: ignore[arg-type]
    verdict = fitted(cluster, Verdict(code="X", title="t", state=State.WARN, findings=[*findings]))
    return {line for finding in verdict.findings for remedy in finding.remedies for line in remedy.commands}


@pytest.mark.parametrize(
    ("launcher", "line"),
    [
        ("slurm", "#SBATCH --exclude='g[2-3]'"),
        ("ssh", "--hosts g1,g4"),
        ("join", "--nodes 2   # on g[1,4], with --node-rank from 0 on"),
    ],
)
def test_all_nodes_of_a_rule_are_left_out_at_once(launcher: str, line: str) -> None:
    assert _lines(launcher, _slow("g2"), _slow("g3", "#SBATCH --exclude=g3")) == {line}


def test_what_slurm_is_told_otherwise_stays() -> None:
    assert _lines("slurm", _slow("g2", "sbatch --exclude=g2 JOB")) == {"sbatch --exclude=g2 JOB"}


def test_where_no_node_is_left_slurm_is_named() -> None:
    assert _lines("ssh", *(_slow(node.name) for node in _NODES)) == {"#SBATCH --exclude='g[1-4]'"}


def test_other_commands_are_untouched() -> None:
    assert _lines("ssh", _slow("g2", "ip -br addr")) == {"ip -br addr"}
