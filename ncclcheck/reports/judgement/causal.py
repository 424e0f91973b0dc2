"""The order of verdicts: what stands on the ground of another rule comes after what that one says."""

from __future__ import annotations

from collections.abc import Sequence

from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.rule import all_rules

_BAD = (State.FAIL, State.WARN)


def causes_first(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The same order, but each verdict after the bad ones that its rule names as its ground."""
    grounds = {rule.code: rule.ground for rule in all_rules()}
    bad = {verdict.code: verdict for verdict in verdicts if verdict.state in _BAD}
    placed: dict[str, Verdict] = {}
    begun: set[str] = set()

    def place(verdict: Verdict) -> None:
        if verdict.code in begun:
            return
        begun.add(verdict.code)
        for code in _below(verdict.code, grounds):
            if code in bad:
                place(bad[code])
        placed[verdict.code] = verdict

    for verdict in verdicts:
        place(verdict)
    return list(placed.values())


def _below(code: str, grounds: dict[str, tuple[str, ...]]) -> list[str]:
    """All that a rule stands on, also by way of rules that passed; the deepest first."""
    below: dict[str, None] = {}

    def visit(rule: str) -> None:
        for ground in grounds.get(rule, ()):
            if ground not in below and ground != code:
                visit(ground)
                below[ground] = None

    visit(code)
    return list(below)
