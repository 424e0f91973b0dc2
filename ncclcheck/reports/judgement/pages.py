"""The rules' pages: `ncclcheck explain`, and docs/checks/*.md, from the same docstrings."""

from __future__ import annotations

import difflib
import re

from ncclcheck.reports.judgement.rule import Rule, all_rules
from ncclcheck.reports.judgement.symptoms import by_symptom


def page(code: str) -> str:
    """One rule's page as Markdown. Raises KeyError for what is no code."""
    subject = next(rule for rule in all_rules() if rule.code == code)
    return f"# {subject.code}: {subject.title}\n\n{_head(subject)}\n\n{subject.page}\n"


def answer(words: str) -> str:
    """The page of a code, or what speaks of these words. Raises KeyError with what would have been understood."""
    codes = [rule.code for rule in all_rules()]
    if words.upper() in codes:
        return page(words.upper())
    hits = search(words)
    if len(hits) == 1:
        return page(hits[0].code)
    if hits:
        lines = [_line(rule) for rule in hits]
        return "\n".join([f"{len(hits)} checks speak of {words!r}:", "", *lines, "", _ONE_PAGE]) + "\n"
    near = difflib.get_close_matches(words.upper(), codes, n=3, cutoff=0.5)
    hint = f"nearest are {', '.join(near)}" if near else f"the first of {len(codes)} is {codes[0]}"
    raise KeyError(
        f"{words!r} is no code of this version, and no page has it; {hint}; list all: ncclcheck explain"
    )


def search(words: str) -> list[Rule]:
    """Rules whose title or page has all of these words: in the title first, then side by side."""
    wanted = [re.compile(rf"(?<![a-z0-9]){re.escape(word)}") for word in words.lower().split()]
    hits = [rule for rule in all_rules() if _has_all(f"{rule.title} {rule.page}", wanted)] if wanted else []
    together = " ".join(words.lower().split())
    return sorted(hits, key=lambda r: (not _has_all(r.title, wanted), together not in _plain(r.page), r.code))


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _has_all(text: str, wanted: list[re.Pattern[str]]) -> bool:
    return all(word.search(_plain(text)) for word in wanted)


_ONE_PAGE = "One page: ncclcheck explain CODE; by words: ncclcheck explain WORD..."


def _line(rule: Rule) -> str:
    return f"{rule.code}  {rule.title}"


def _head(rule: Rule) -> str:
    parts = [f"Family {rule.family}; at worst {rule.worst.word}"]
    if rule.between_machines:
        parts.append("not judged between nodes simulated on one machine")
    if rule.at_least > 1:
        parts.append(f"judged from {rule.at_least} nodes on")
    if rule.commands:
        parts.append(f"judged by {', '.join(rule.commands)}")
    return "; ".join(parts) + "."


def listing() -> str:
    """All rules, one a line."""
    return "\n".join([*map(_line, all_rules()), "", _ONE_PAGE]) + "\n"


def documents() -> dict[str, str]:
    """File name -> content of docs/checks."""
    return {"index.md": "\n".join(_index()) + "\n", **{f"{rule.code}.md": page(rule.code) for rule in all_rules()}}


def _index() -> list[str]:
    """By symptom, for who has a problem; then all of them by code."""
    lines = ["# Checks", "", "Generated from the rules; `ncclcheck explain` shows the same offline,",
             "`ncclcheck explain WORD` searches it.", "", "## By symptom", ""]  # fmt: skip
    for symptom, rules in by_symptom(all_rules()).items():
        lines += [f"### {symptom}", "", *(_link(rule) for rule in rules), ""]
    return [*lines, "## By code", "", *(_link(rule) for rule in all_rules())]


def _link(rule: Rule) -> str:
    return f"- [{rule.code}]({rule.code}.md): {rule.title}"
