"""Verdicts -> the decision: what is shown, and the state of the whole."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from ncclcheck.probes.facts import replace
from ncclcheck.reports.judgement.findings import Finding, State, Verdict
from ncclcheck.reports.judgement.rule import flagged

Outcome = Literal["fail", "incomplete", "warn", "unknown", "ok"]


def select(verdicts: list[Verdict], only: tuple[str, ...], ignore: tuple[str, ...]) -> list[Verdict]:
    """`--only` leaves rules out (the tool's own RUN rules stay), `--ignore` makes them notes that stay visible.

    Both take codes and prefixes of codes (`NET`).
    """
    chosen = [v for v in verdicts if not only or v.code.startswith((*only, "RUN"))]
    return [_ignored(v) if ignore and v.code.startswith(ignore) else v for v in chosen]


def _ignored(verdict: Verdict) -> Verdict:
    if verdict.state.rank >= State.NOTE.rank:
        return verdict
    findings = [_as_note(finding) for finding in verdict.findings]
    return replace(verdict, state=State.NOTE, findings=findings)


def _as_note(finding: Finding) -> Finding:
    if finding.state.rank >= State.NOTE.rank:
        return finding
    return replace(finding, state=State.NOTE, what=f"{finding.what} (ignored; was {finding.state.word})")


def counts(verdicts: list[Verdict]) -> dict[str, int]:
    """How many verdicts have each state."""
    counter = Counter(v.state for v in verdicts)
    return {state.value: counter[state] for state in reversed(State)}


def outcome(verdicts: list[Verdict]) -> Outcome:
    """The state of the whole: fail > incomplete > warn > unknown > ok."""
    states = {v.state for v in verdicts}
    if State.FAIL in states:
        return "fail"
    if any(v.code in flagged("unfinished") and v.state is State.UNKNOWN for v in verdicts):
        return "incomplete"
    if State.WARN in states:
        return "warn"
    return "unknown" if State.UNKNOWN in states else "ok"
