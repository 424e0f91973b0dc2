"""A fleet's answers as text."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.fleet.answers import Fleet, RepeatedFailure, SlowerNode, Together, Upgrade
from ncclcheck.reports.text.words.fold import fold_some
from ncclcheck.reports.text.words.visible import in_line

_MOST = 20  # lines of one question; -o json has all


def text(fleet: Fleet) -> str:
    """The questions in order, each with its answers or with what was looked for in vain."""
    head = f"{fleet.nodes:,} nodes, {fleet.results:,} results from {fleet.first} to {fleet.last}"
    lines = [
        head,
        *_section("Fail again and again", map(repeats, fleet.repeats), "no node"),
        *_section("Slower than their own past", map(slower, fleet.slower), "no node"),
        *_section("Fail together", map(together, fleet.together), "no leaf, firmware or image"),
        *_section("Changed by an upgrade", map(upgrade, fleet.upgrades), "nothing"),
    ]
    return "\n".join(lines) + "\n"


def _section(title: str, texts: Iterator[str], none: str) -> Iterator[str]:
    lines = [*texts]
    yield f"\n{title}"
    yield from (f"  {in_line(line)}" for line in lines[:_MOST])
    if len(lines) > _MOST:
        yield f"  and {len(lines) - _MOST:,} more (-o json has all)"
    if not lines:
        yield f"  {none}"


def repeats(row: RepeatedFailure) -> str:
    """One node and check."""
    return (
        f"{row.node} ({row.serial}): {row.code} failed in {row.fails} of {row.results} results, on the others in "
        f"{row.usual:.1%}; last on {row.last}: {row.what}"
    )


def slower(row: SlowerNode) -> str:
    """One node and figure."""
    how = "slowly, from" if row.slowly else "since"
    now = "; back to its past since" if row.recovered else ""
    return (
        f"{row.node} ({row.serial}): {row.metric} {row.change:+.1%} {how} {row.since} "
        f"({row.before:.4g} before, {row.after:.4g} after){now}"
    )


def together(row: Together) -> str:
    """One check and what its nodes share."""
    beside = f", as all with {', '.join(row.shared)}" if row.shared else ""
    return (
        f"{row.code}: {row.failing} of {row.of} nodes with {row.attribute} {row.value}{beside}, "
        f"{row.elsewhere} of {row.of_elsewhere} others: {fold_some(row.nodes)}"
    )


def upgrade(row: Upgrade) -> str:
    """One version and what changed with it."""
    what = "of results fail" if row.subject.isupper() else "better" if row.change > 0 else "worse"
    return (
        f"{row.attribute} {row.before} -> {row.after} on {row.nodes} nodes, {row.first} to {row.last}: "
        f"{row.subject} {row.change:+.1%} {what} ({row.low:+.1%} to {row.high:+.1%})"
    )
