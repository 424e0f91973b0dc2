"""The rules' pages: `ncclcheck explain`, and docs/checks/*.md, from the same docstrings."""

from __future__ import annotations

import difflib

from ncclcheck.reports.rule import Rule, all_rules


def page(code: str) -> str:
    """One rule's page as Markdown. Raises KeyError with what would have been understood."""
    rules = {rule.code: rule for rule in all_rules()}
    found = rules.get(code.upper())
    if found is None:
        near = difflib.get_close_matches(code.upper(), rules, n=3, cutoff=0.5)
        hint = f"nearest are {', '.join(near)}" if near else f"the first of {len(rules)} is {min(rules)}"
        raise KeyError(f"{code!r} is no code of this version; {hint}; list all: ncclcheck explain")
    return f"# {found.code}: {found.title}\n\n{_head(found)}\n\n{found.page}\n"


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
    lines = [f"{rule.code}  {rule.title}" for rule in all_rules()]
    return "\n".join([*lines, "", "One page: ncclcheck explain CODE"]) + "\n"


def documents() -> dict[str, str]:
    """File name -> content of docs/checks."""
    index = ["# Checks", "", "Generated from the rules; `ncclcheck explain` shows the same offline.", ""]
    index += [f"- [{rule.code}]({rule.code}.md): {rule.title}" for rule in all_rules()]
    return {"index.md": "\n".join(index) + "\n", **{f"{r.code}.md": page(r.code) for r in all_rules()}}
