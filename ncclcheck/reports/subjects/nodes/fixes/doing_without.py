"""Doing without a node until it is repaired, in the words of the launcher at hand.

Rules say it in Slurm's words, `#SBATCH --exclude=NODE`; here it becomes what this run's user types.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from shlex import quote

from ncclcheck.probes.facts import Cluster, replace
from ncclcheck.reports.judgement.findings import Finding, Remedy, Verdict
from ncclcheck.reports.text.words.fold import fold_names

_SLURM = re.compile(r"(?P<how>#SBATCH|sbatch|srun) --exclude=(?P<name>\S+)(?P<rest> .*)?")
_MOST_LISTED = 16  # hosts; of more it is easier to take one out of the list than to type it anew


def fitted(cluster: Cluster, verdict: Verdict) -> Verdict:
    """The same verdict; all nodes of which it advises so are left out in one go."""
    out = dict.fromkeys(name for finding in verdict.findings if _advises(finding) and (name := finding.where.node))
    if not any(map(_advises, verdict.findings)):
        return verdict
    return replace(verdict, findings=[_finding(cluster, finding, out) for finding in verdict.findings])


def _advises(finding: Finding) -> bool:
    return any(_SLURM.fullmatch(line) for remedy in finding.remedies for line in remedy.commands)


def _finding(cluster: Cluster, finding: Finding, out: Collection[str]) -> Finding:
    return replace(finding, remedies=[_remedy(cluster, remedy, out) for remedy in finding.remedies])


def _remedy(cluster: Cluster, remedy: Remedy, out: Collection[str]) -> Remedy:
    lines = [_line(cluster, line, out) for line in remedy.commands]
    return replace(remedy, commands=lines) if lines != remedy.commands else remedy


def _line(cluster: Cluster, line: str, out: Collection[str]) -> str:
    if not (match := _SLURM.fullmatch(line)):
        return line
    left = [node.name for node in cluster.nodes if node.name not in out]
    if cluster.job.launcher == "ssh" and out and 0 < len(left) <= _MOST_LISTED:
        return f"--hosts {quote(','.join(left))}"
    if cluster.job.launcher == "join" and out and left:
        return f"--nodes {len(left)}   # on {fold_names(left)}, with --node-rank from 0 on"
    names = fold_names(out).replace(", ", ",") if out else match["name"]
    return f"{match['how']} --exclude={quote(names)}{match['rest'] or ''}"
