"""Where a variable is set on a node, said beside every finding that names it, for `unset` does not last."""

from __future__ import annotations

import re
from shlex import quote

from ncclcheck.probes.facts import Cluster, Unread, at, replace
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.judgement.findings import Evidence, Finding, Remedy, State, Verdict, admin, seen, you
from ncclcheck.reports.text.words.fold import fold_names

_NAME = re.compile(r"\b[A-Z][A-Z0-9_]{3,}\b")
_MOST = 3  # variables of one finding of which it is said


@derived
def _origins(cluster: Cluster) -> dict[str, dict[str, str]]:
    """By variable and node, where a file was found that sets it."""
    origins: dict[str, dict[str, str]] = {}
    for node in cluster.nodes:
        listed = at(node, "job.variables")
        for variable in [] if isinstance(listed, Unread) else listed:
            if variable.set_in:
                origins.setdefault(variable.name, {})[node.name] = variable.set_in
    return origins


def fitted(cluster: Cluster, verdict: Verdict) -> Verdict:
    """The verdict, its findings with the files that set what they name."""
    if not _origins(cluster) or verdict.state in (State.OK, State.SKIPPED):
        return verdict
    return replace(verdict, findings=[_with_files(cluster, finding) for finding in verdict.findings])


def _with_files(cluster: Cluster, finding: Finding) -> Finding:
    if finding.state in (State.OK, State.SKIPPED):
        return finding
    words = " ".join([finding.what, *(evidence.value for evidence in finding.evidence)])
    evidence: list[Evidence] = []
    fixes: list[Remedy] = []
    for name in [word for word in dict.fromkeys(_NAME.findall(words)) if word in _origins(cluster)][:_MOST]:
        places = {
            node: place for node, place in _origins(cluster)[name].items() if finding.where.node in (None, node)
        }
        for place in sorted({*places.values()}):
            nodes = fold_names([node for node, other in places.items() if other == place])
            path, _, line = place.rpartition(":")
            evidence.append(seen(f"{name} is set on {nodes} by", place))
            by = admin if path.startswith("/etc/") else you
            python = ", which every Python runs at its start: unset in a shell does nothing" * path.endswith(
                (".pth", ".py")
            )
            fixes.append(
                by(
                    f"Take the line out, or correct it, in {path}{python}.",
                    f"sed -n {line}p {quote(path)}   # on {nodes}",
                )
            )
    return replace(finding, evidence=[*finding.evidence, *evidence], remedies=[*finding.remedies, *fixes])
