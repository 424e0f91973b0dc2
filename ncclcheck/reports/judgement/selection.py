"""Which nodes are fit for the job, which are not and why, and the words that take a node out of service. Pure."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from ncclcheck.reports.judgement.findings import Culprit, State, Verdict
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.judgement.rule import flagged
from ncclcheck.reports.text.words.fold import fold_names

_OF_A_NODE = ("node", "nic", "gpu")
_NAMELESS = re.compile(r"node rank \d+")  # a node of a join that never said its name: no scheduler knows it so


def bad_nodes(verdicts: Iterable[Verdict], culprits: Iterable[Culprit], names: Sequence[str]) -> dict[str, str]:
    """Node -> the code that speaks against it: a failure that the node owns, or a slow part of it.

    What fails on all nodes says nothing about any of them, and excludes none.
    """
    codes: dict[str, str] = {}
    failed = {verdict.code for verdict in verdicts if verdict.state is State.FAIL}
    for verdict in verdicts:
        owned = [
            finding.where.node
            for finding in verdict.findings
            if finding.state is State.FAIL and finding.owner == "node"
        ]
        _add(codes, {name for name in owned if name is not None and name in names}, verdict.code, names)
    for culprit in culprits:
        explained = [code for code in culprit.explains if code in failed]
        if culprit.kind in _OF_A_NODE and explained:
            _add(codes, {name.partition("/")[0] for name in culprit.names}, explained[0], names)
    return {name: codes[name] for name in names if name in codes}


def _add(codes: dict[str, str], places: set[str], code: str, names: Sequence[str]) -> None:
    if len(names) == 1 or not places >= set(names):
        for name in places:
            codes.setdefault(name, code)


def of_document(document: Document) -> tuple[list[str], dict[str, str]]:
    """The fit nodes in the launcher's order, and the others with what speaks against them."""
    names = [entry.name for entry in document.nodes]
    bad = bad_nodes(document.verdicts, document.culprits, names)
    silent = {silence.node: "RUN001" for silence in document.run.silent}
    if len(silent) >= document.job.nodes_asked > 1:
        silent = {}  # what ails all of them is no node's fault
    return [name for name in names if name not in bad and name not in silent], {**silent, **bad}


def best(document: Document, healthy: Sequence[str], count: int) -> list[str]:
    """So many of the fit nodes, in the launcher's order: those first that no warning names."""
    warned = Counter(
        finding.where.node for v in document.verdicts for finding in v.findings if finding.state is State.WARN
    )
    chosen = sorted(healthy, key=lambda name: warned[name])[:count]
    return [name for name in healthy if name in chosen]


def against_the_rest(document: Document, bad: Collection[str], *, strict: bool) -> str:
    """The code that keeps the nodes that are left from being ready; empty where all that ails is left out.

    A finding is left out with the node that it names, or where the culprit that explains it is.
    """
    explained = {code for culprit in document.culprits if _all_in(culprit, bad) for code in culprit.explains}
    for verdict in document.verdicts:
        for finding in verdict.findings:
            elsewhere = finding.where.node in bad or (finding.where.node is None and verdict.code in explained)
            if not elsewhere and _counts(verdict.code, finding.state, strict=strict):
                return verdict.code
    return ""


def _all_in(culprit: Culprit, bad: Collection[str]) -> bool:
    return culprit.kind in _OF_A_NODE and all(name.partition("/")[0] in bad for name in culprit.names)


def _counts(code: str, state: State, *, strict: bool) -> bool:
    if state is State.UNKNOWN:
        return strict or code in flagged("unfinished")
    return state is State.FAIL or (strict and state is State.WARN)


def healthy_file(healthy: Sequence[str]) -> str:
    """One name a line: a hostfile for ssh, torchrun's wrappers and OpenMPI."""
    return "".join(f"{name}\n" for name in healthy)


def exclude_file(bad: Iterable[str]) -> str:
    """One line in Slurm's form, for `sbatch --exclude=`; empty where nothing is excluded."""
    names = slurm_list(_named(bad))
    return f"{names}\n" if names else ""


def _named(nodes: Iterable[str]) -> list[str]:
    return [name for name in nodes if not _NAMELESS.fullmatch(name)]


def slurm_list(names: Iterable[str]) -> str:
    """`a[1-3],b`."""
    return fold_names(names).replace(", ", ",")


def out_of_service(bad: dict[str, str]) -> list[str]:
    """The lines that an admin pastes to drain or cordon them."""
    lines = []
    named = {name: bad[name] for name in _named(bad)}
    for code in dict.fromkeys(named.values()):
        names = [name for name, reason in named.items() if reason == code]
        node_list = shlex.quote(slurm_list(names))
        lines.append(f"scontrol update NodeName={node_list} State=DRAIN Reason='ncclcheck {code}'")
        lines.append(f"kubectl cordon {' '.join(shlex.quote(name) for name in names)}")
    return lines
