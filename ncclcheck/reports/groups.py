"""What is told together: the same finding of several nodes, several places with one remedy, one unread fact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ncclcheck.probes.facts import replace
from ncclcheck.reports.findings import Evidence, Finding, Remedy, State, Verdict
from ncclcheck.reports.fold import fold_names
from ncclcheck.reports.jsondoc import Document
from ncclcheck.reports.rule import FAMILIES

_UNREAD = " could not be read: "


@dataclass
class Place:
    """One statement and the places of which it is true, folded."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}:  {self.what}" if self.where else self.what


@dataclass
class Block:
    """Places that have one reason and one remedy, with the rules that say so."""

    state: State
    codes: list[str]
    title: str
    why: str
    remedies: list[Remedy]
    places: list[Place] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)


def blocks(document: Document, states: Iterable[State]) -> Iterator[Block]:
    """Worst first, causes before symptoms."""
    told = ranked(document)
    for state in states:
        of_state = [b for v in told for b in _of_verdict(v, state)]
        yield from _unread_together(of_state) if state is State.UNKNOWN else of_state


def ranked(document: Document) -> list[Verdict]:
    """Causes before symptoms: first what logs show, the likeliest first."""
    causes = document.diagnosis.causes if document.diagnosis else []
    rank = {cause.code: index for index, cause in reversed([*enumerate(causes)])}
    return sorted(document.verdicts, key=lambda v: (rank.get(v.code, len(causes)), *order(v)))


def order(verdict: Verdict) -> tuple[int, str]:
    """Causes before symptoms: what a node is comes before what the job did on it."""
    families = [*(f for f in FAMILIES if f not in ("RUN", "BEN")), "RUN", "BEN"]
    return families.index(verdict.code[:3]), verdict.code


def _of_verdict(verdict: Verdict, state: State) -> list[Block]:
    found: dict[tuple[object, ...], Block] = {}
    for alike in _alike(finding for finding in verdict.findings if finding.state is state):
        first = alike[0]
        new = Block(state, [verdict.code], verdict.title, first.why, first.remedies)
        block = found.setdefault((first.why, str(first.remedies)), new)
        block.places.append(Place(_where(alike), first.what))
        block.evidence += [one for one in first.evidence if one not in block.evidence]
    return list(found.values())


def _alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings that differ in their node alone."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        key = (replace(finding.where, node=None), finding.what, finding.why, str(finding.remedies))
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _where(alike: list[Finding]) -> str:
    nodes = fold_names(f.where.node for f in alike if f.where.node is not None)
    rest = str(replace(alike[0].where, node=None))
    return "  ".join(part for part in (nodes, rest) if part)


def _unread_together(blocks_of_state: list[Block]) -> list[Block]:
    """One fact that could not be read leaves many rules unjudged; said once, it does not hide the rest."""
    found: dict[tuple[object, ...], Block] = {}
    for block in blocks_of_state:
        fact, unread, reason = block.places[0].what.partition(_UNREAD)
        single = len(block.places) == 1 and unread and [e.source for e in block.evidence] == [fact]
        key = (block.places[0].where, reason, block.why, str(block.remedies)) if single else (id(block),)
        if key in found:
            _add(found[key], block)
        else:
            found[key] = block
    return list(found.values())


def _add(block: Block, other: Block) -> None:
    """Take another rule's unread fact in."""
    block.codes += other.codes
    block.evidence += [one for one in other.evidence if one not in block.evidence]
    facts = ", ".join(sorted({one.source for one in block.evidence}))
    block.title = "could not be judged"
    block.places[0].what = f"{facts}{_UNREAD}{block.places[0].what.partition(_UNREAD)[2]}"
