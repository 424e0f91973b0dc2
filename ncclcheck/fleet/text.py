"""A fleet's answers as text."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.fleet.answers import Fleet, Repeats, Slower, Together, Upgrade
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


def _section(title: str, told: Iterator[str], none: str) -> Iterator[str]:
    lines = [*told]
    yield f"\n{title}"
    yield from (f"  {in_line(line)}" for line in lines[:_MOST])
    if len(lines) > _MOST:
        yield f"  and {len(lines) - _MOST:,} more (-o json has all)"
    if not lines:
        yield f"  {none}"


def repeats(one: Repeats) -> str:
    """One node and check."""
    return (
        f"{one.node} ({one.serial}): {one.code} failed in {one.fails} of {one.results} results, on the others in "
        f"{one.usual:.1%}; last on {one.last}: {one.what}"
    )


def slower(one: Slower) -> str:
    """One node and figure."""
    how = "slowly, from" if one.slowly else "since"
    now = "; back to its past since" if one.recovered else ""
    return (
        f"{one.node} ({one.serial}): {one.metric} {one.change:+.1%} {how} {one.since} "
        f"({one.before:.4g} before, {one.after:.4g} after){now}"
    )


def together(one: Together) -> str:
    """One check and what its nodes share."""
    beside = f", as all with {', '.join(one.shared)}" if one.shared else ""
    return (
        f"{one.code}: {one.failing} of {one.of} nodes with {one.attribute} {one.value}{beside}, "
        f"{one.elsewhere} of {one.of_elsewhere} others: {fold_some(one.nodes)}"
    )


def upgrade(one: Upgrade) -> str:
    """One version and what changed with it."""
    what = "of results fail" if one.subject.isupper() else "better" if one.change > 0 else "worse"
    return (
        f"{one.attribute} {one.before} -> {one.after} on {one.nodes} nodes, {one.first} to {one.last}: "
        f"{one.subject} {one.change:+.1%} {what} ({one.low:+.1%} to {one.high:+.1%})"
    )
