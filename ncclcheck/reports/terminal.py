"""The text report: what is wrong with why, how we know and what to do; the last line is the decision."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ncclcheck.reports import summary, table
from ncclcheck.reports.findings import Finding, State, Verdict
from ncclcheck.reports.fold import fold_names
from ncclcheck.reports.jsondoc import Document
from ncclcheck.reports.rule import FAMILIES

_COLOURS = {State.FAIL: "1;31", State.WARN: "33", State.UNKNOWN: "35", State.NOTE: "36", State.OK: "32"}
_BODY = " " * 8


@dataclass(frozen=True)
class Style:
    """How to print. width: columns; colour: ANSI codes, which only double the words."""

    width: int = 80
    colour: bool = False
    verbose: bool = False
    contact: str = ""

    def paint(self, state: State, text: str) -> str:
        """The text in the colour of a state."""
        return f"\x1b[{_COLOURS[state]}m{text}\x1b[0m" if self.colour and state in _COLOURS else text


def text(document: Document, style: Style) -> str:
    """The whole report."""
    blocks = [
        summary.head(document),
        summary.facts(document, style.width),
        table.collectives(document, style.width),
        _families(document, style),
        *(_finding(verdict, group, style) for verdict, group in _told(document, style)),
        _end(document, style),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def short(document: Document, style: Style) -> str:
    """A few lines, made to be pasted."""
    lines = [f"{summary.head(document)}: {_counted(document)}"]
    for verdict, group in _told(document, style):
        where = _where(group)
        lines.append(f"{verdict.code} {group[0].state.word:8}{where + ': ' if where else ''}{group[0].what}")
    lines.append(summary.decision(document))
    return "\n".join(lines) + "\n"


def _order(verdict: Verdict) -> int:
    """Causes before symptoms: what a node is comes before what the job did on it."""
    families = [*(f for f in FAMILIES if f not in ("RUN", "BEN")), "RUN", "BEN"]
    return families.index(verdict.code[:3])


def _told(document: Document, style: Style) -> Iterator[tuple[Verdict, list[Finding]]]:
    """Findings worth telling, worst first, the same ones of several nodes together."""
    shown = [State.FAIL, State.WARN, State.UNKNOWN, State.NOTE, *([State.OK] if style.verbose else [])]
    for state in shown:
        for verdict in sorted(document.verdicts, key=lambda v: (_order(v), v.code)):
            for group in _grouped(f for f in verdict.findings if f.state is state):
                yield verdict, group


def _grouped(findings: Iterable[Finding]) -> list[list[Finding]]:
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        where = finding.where
        key = (where.device, where.rank, where.peer, finding.what, finding.why, str(finding.remedies))
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _where(group: list[Finding]) -> str:
    nodes = fold_names(f.where.node for f in group if f.where.node is not None)
    rest = str(
        type(group[0].where)(device=group[0].where.device, rank=group[0].where.rank, peer=group[0].where.peer)
    )
    return "  ".join(part for part in (nodes, rest) if part)


def _finding(verdict: Verdict, group: list[Finding], style: Style) -> str:
    first = group[0]
    lines = [f"{style.paint(first.state, f'{first.state.word:8}')}{verdict.code}  {verdict.title}"]
    where = _where(group)
    lines += _wrapped(f"{where}:  {first.what}" if where else first.what, style.width)
    if first.why and first.state is not State.OK:
        lines += _labelled("why", first.why, style.width)
    if first.state in (State.FAIL, State.WARN) or style.verbose or verdict.code.startswith("RUN"):
        for evidence in first.evidence:
            lines += _labelled("seen", f"{evidence.source}: {evidence.value}", style.width)
    for remedy in first.remedies:
        lines += _labelled("fix", f"[{remedy.who}] {remedy.text}", style.width)
        lines += [f"{_BODY}           {command}" for command in remedy.commands]
    return "\n".join(lines)


def _wrapped(words: str, width: int, first: str = _BODY, rest: str = _BODY) -> list[str]:
    return textwrap.wrap(
        words, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _labelled(label: str, words: str, width: int) -> list[str]:
    return _wrapped(words, width, f"{_BODY}{label:6}", _BODY + " " * 6)


def _families(document: Document, style: Style) -> str:
    """One line a family: how many verdicts of each state."""
    rows: dict[str, Counter[State]] = {}
    for verdict in sorted(document.verdicts, key=_order):
        rows.setdefault(FAMILIES[verdict.code[:3]], Counter())[verdict.state] += 1
    lines = []
    for family, counted in rows.items():
        parts = (style.paint(s, f"{counted[s]} {s.word}") for s in reversed(State) if counted[s])
        lines.append(f"  {family:10}" + "   ".join(_ok_first(parts)))
    if style.verbose:
        lines += [f"  {v.state.word:8}{v.code}  {v.title}{_because(v)}" for v in document.verdicts]
    return "\n".join(lines)


def _ok_first(parts: Iterable[str]) -> list[str]:
    return sorted(parts, key=lambda part: " ok" not in part)


def _because(verdict: Verdict) -> str:
    return f" ({verdict.reason})" if verdict.reason else ""


def _counted(document: Document) -> str:
    names = {"fail": "failed", "warn": "warned", "unknown": "unknown", "note": "noted", "ok": "passed"}
    counted = {**document.counts}
    parts = [f"{counted[state]} {word}" for state, word in names.items() if counted.get(state)]
    return ", ".join([*parts, *([f"{counted['skipped']} skipped"] if counted.get("skipped") else [])])


def _end(document: Document, style: Style) -> str:
    lines: list[str] = []
    bad = [v.code for v in document.verdicts if v.state in (State.FAIL, State.WARN, State.UNKNOWN)]
    if bad:
        lines.append(
            f"Pages: ncclcheck explain {bad[0]}" + ("" if len(bad) == 1 else f"   ({', '.join(bad[1:6])})")
        )
    if style.contact and bad:
        lines.append(f"Help: {style.contact}")
    lines += _wrapped(f"{_counted(document)}.  {summary.decision(document)}", style.width, "", "")
    return "\n".join(lines)
