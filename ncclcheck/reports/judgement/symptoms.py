"""From what a person sees to the checks that may explain it: by the words of the rules' own pages."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ncclcheck.reports.judgement.rule import Rule

_HANGS = "My job hangs, or ends in a time-out"
_START = "My job cannot start, or its nodes cannot connect"
_SLOW = "My job is slow"
_WRONG = "Results are wrong, or the loss becomes nan"
_ROOM = "Out of memory, or no space left"
_DIES = "My job dies"
_UNHEARD = "A setting does not do what it says"
_SYMPTOMS = {
    _HANGS: r"\bhangs?\b|\bhung\b|for ever|without end|time-?out|times? out|timed out|wait in NCCL"
    r"|without a message",
    _START: r"\binit\b|rendezvous|refused|unreachable|cannot (be )?reach|no other node can reach|cannot connect"
    r"|import torch|no usable GPU|cannot join|cannot start|Address already|no CUDA-capable",
    _SLOW: r"\bslow|bandwidth|\bpace\b|faster|\bspeed\b|overlap|plain TCP|hinder|\blate\b",
    _WRONG: r"wrong (results?|values|data|rank)|damaged|corrupt|never sent|unpickle|results were wrong",
    _ROOM: r"out of memory|No space left|Cannot allocate|memory limit|is full|Too many open files|\binodes\b",
    _DIES: r"\bdies?\b|\bdied\b|\bkill(s|ed)?\b|crash|bus error|segmentation|exception|Xid"
    r"|\bends? (in|with|at|the job)\b|`[^`]*([Ee]rror|failed|denied)[^`]*`",
    _UNHEARD: r"looks? like a setting|no effect|in vain|ignores?\b|does nothing|do nothing|without a word"
    r"|overrides|says so",
}
_BY_FAMILY = {
    "BEN001": _WRONG,
    "MEM": _ROOM,
    "DAT": _WRONG,
    "TRN": _WRONG,
    "HST008": _SLOW,
    "GPU014": _SLOW,
    "FAB": _SLOW,
}
_OTHER = "Something differs between nodes, or cannot be proved"


def by_symptom(rules: Iterable[Rule]) -> dict[str, list[Rule]]:
    """Each symptom with the rules whose page speaks of it; a rule that speaks of none stands under the last."""
    listed = list(rules)
    found = {symptom: [rule for rule in listed if _shows(rule, symptom)] for symptom in _SYMPTOMS}
    named = {rule.code for of_symptom in found.values() for rule in of_symptom}
    found[_OTHER] = [rule for rule in listed if rule.code not in named]
    return {symptom: of_symptom for symptom, of_symptom in found.items() if of_symptom}


def _shows(rule: Rule, symptom: str) -> bool:
    by_family = symptom in (_BY_FAMILY.get(rule.code), _BY_FAMILY.get(rule.code[:3]))
    return by_family or bool(re.search(_SYMPTOMS[symptom], section(rule, "Why it matters")))


def section(rule: Rule, heading: str) -> str:
    """The text under one heading of a rule's page, in one line."""
    _, _, rest = rule.page.partition(f"## {heading}\n")
    return " ".join(rest.partition("\n## ")[0].split())
