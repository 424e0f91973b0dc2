"""docs/settings.md: every rule of settings that a fact can call for, and those that none can."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.reports.recommend import RULES
from ncclcheck.reports.recommend.advice import SettingRule
from ncclcheck.reports.recommend.settings.unseen import UNSEEN

_HEAD = """\
# Recommended settings

Generated from the rules. `ncclcheck bench` and `ncclcheck preflight` end with three lists that are never mixed:

- **SET**: facts of the site, such as the interface that leads to all nodes. NCCL cannot know them.
- **UNSET**: what is stale, for debugging, copied from another machine, or harmful. Usually the most useful list.
- **TRY**: what only a measurement can show, with the command that measures it. Never applied by this tool.
  `ncclcheck bench --with VAR=VALUE` runs short jobs in turn, without the setting and with it; what gains beyond
  noise and loses nowhere becomes **SET**, with its figure and the basis `measured`.

What NCCL would choose by itself is never recommended; where nothing is, the report says so. Each line names what
was seen on this very cluster, the source, the risk, the versions of NCCL that it holds for, and how to undo it.
Where authorities disagree, it says who. On simulated nodes, and where the job does not use NCCL, only the list
UNSET is made, and the interface of gloo where nodes cannot meet.

`--env-file nccl.env` writes a script to be sourced, `--nccl-conf nccl.conf` a file for NCCL. `preflight` runs a
short job with the lists SET and UNSET first, and keeps back what does not survive (`--no-verify` skips that).

## Rules that facts call for
"""
_UNSEEN = """
## Rules that no fact can call for

They are known in the field, and not recommended here, for the reason that stands beside them.
"""
_ORDER = ("set", "unset", "try")


def page() -> str:
    """The page."""
    lines = [_HEAD]
    for place, action in enumerate(_ORDER):
        lines += [
            *([""] if place else []),
            f"### {action.upper()}",
            "",
            *_table(rule for rule in RULES if rule.action == action),
        ]
    lines += [_UNSEEN, *_row("Rule", "What", "Why not"), *_row("---", "---", "---")]
    for name, (what, reason) in UNSEEN.items():
        lines += _row(name, what, reason)
    return "\n".join(lines) + "\n"


def _table(rules: Iterator[SettingRule]) -> Iterator[str]:
    yield from _row("Rule", "What", "Holds for", "Risk", "Source")
    yield from _row("---", "---", "---", "---", "---")
    for rule in rules:
        what = rule.title + (f". {rule.disagree}" if rule.disagree else "")
        yield from _row(rule.rule, what, rule.valid_for, rule.risk, rule.source)


def _row(*cells: str) -> Iterator[str]:
    yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
