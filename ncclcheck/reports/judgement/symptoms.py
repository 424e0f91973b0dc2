"""From what a person sees to the checks that may explain it: each rule's page names it under "Seen as"."""

from __future__ import annotations

from collections.abc import Iterable

from ncclcheck.reports.judgement.rule import Rule

# The words of a page -> the heading of the index.
SYMPTOMS = {
    "hangs": "My job hangs, or ends in a time-out",
    "does not start": "My job cannot start, or its nodes cannot connect",
    "slow": "My job is slow",
    "wrong results": "Results are wrong, or the loss becomes nan",
    "out of memory": "Out of memory, or no space left",
    "dies": "My job dies",
    "setting without effect": "A setting does not do what it says",
}
_OTHER = "Something differs between nodes, or cannot be proved"


def symptoms(rule: Rule) -> list[str]:
    """The words under "Seen as", keys of SYMPTOMS; none where nothing is seen before the check speaks."""
    return [word for word in section(rule, "Seen as").split(", ") if word]


def by_symptom(rules: Iterable[Rule]) -> dict[str, list[Rule]]:
    """Each symptom with the rules that may explain it; a rule that names none stands under the last."""
    grouped: dict[str, list[Rule]] = {heading: [] for heading in (*SYMPTOMS.values(), _OTHER)}
    for rule in rules:
        for heading in [SYMPTOMS[word] for word in symptoms(rule)] or [_OTHER]:
            grouped[heading].append(rule)
    return {heading: explaining for heading, explaining in grouped.items() if explaining}


def section(rule: Rule, heading: str) -> str:
    """The text under one heading of a rule's page, in one line."""
    _, _, rest = rule.page.partition(f"## {heading}\n")
    return " ".join(rest.partition("\n## ")[0].split())
