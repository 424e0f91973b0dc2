"""A fleet's answers as one HTML page with a trend of each node that became slower: no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ncclcheck.fleet import text
from ncclcheck.fleet.answers import Fleet, SlowerNode
from ncclcheck.reports.text.words.visible import visible

_MOST = 200  # rows of one question: the page stays below a megabyte
_WIDTH, _HEIGHT = 640, 120  # pixels of a trend: chosen, several fit a screen
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430;
  background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid #d5dbe3; }
li { margin: .4rem 0; overflow-wrap: anywhere; } .none { color: #5b6675; }
figure { margin: 1rem 0 1.6rem; } figcaption { overflow-wrap: anywhere; }
svg { width: 100%; max-width: 40rem; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: #5b6675; }
.line { fill: none; stroke: #2563a8; stroke-width: 1.6; } .past { stroke: #9aa5b1; stroke-dasharray: 4 3; }
.since { stroke: #b3261e; }
@media (prefers-color-scheme: dark) { body { background: #14181f; color: #e3e8ef; } h2 { border-color: #333c49; }
  svg text, .none { fill: #9aa5b1; color: #9aa5b1; } .line { stroke: #6cb1f5; } .since { stroke: #f28b82; } }
"""


def page(fleet: Fleet) -> str:
    """The whole file."""
    title = f"{fleet.nodes:,} nodes, {fleet.results:,} results from {fleet.first} to {fleet.last}"
    return "\n".join([
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src \'unsafe-inline\'">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>ncclcheck fleet: {_safe(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_safe(title)}</h1>",
        *_listed("Fail again and again", map(text.repeats, fleet.repeats), "no node"),
        "<h2>Slower than their own past</h2>",
        *(map(_trend, fleet.slower[:_MOST]) if fleet.slower else ['<p class="none">no node</p>']),
        *_listed("Fail together", map(text.together, fleet.together), "no leaf, firmware or image"),
        *_listed("Changed by an upgrade", map(text.upgrade, fleet.upgrades), "nothing"),
        "</body></html>", "",
    ])  # fmt: skip


def _safe(words: str) -> str:
    return escape(visible(words))


def _listed(title: str, lines: Iterable[str], none: str) -> list[str]:
    shown = [*lines]
    items = [f"<li>{_safe(line)}</li>" for line in shown[:_MOST]]
    more = [f"<li>and {len(shown) - _MOST:,} more (-o json has all)</li>"] if len(shown) > _MOST else []
    return [f"<h2>{title}</h2>", *(["<ul>", *items, *more, "</ul>"] if shown else [f'<p class="none">{none}</p>'])]


def _trend(row: SlowerNode) -> str:
    """Its weeks as shares of its own past, with the day of the change."""
    shares = [share for _, share in row.trend]
    low, high = min(*shares, 0.95, 1.0), max(*shares, 1.02)

    def x(at: float) -> float:
        return 44 + (_WIDTH - 54) * at / max(1, len(shares) - 1)

    def y(share: float) -> float:
        return 8 + (_HEIGHT - 30) * (high - share) / (high - low)

    points = " ".join(f"{x(at):.1f},{y(share):.1f}" for at, share in enumerate(shares))
    changed = sum(day <= row.since for day, _ in row.trend) - 1
    ends = (row.trend[0][0], "start", x(0)), (row.trend[-1][0], "end", x(len(shares) - 1))
    return "".join([
        f"<figure><figcaption>{_safe(text.slower(row))}</figcaption>",
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_safe(row.node)} {_safe(row.metric)}">',
        f'<line class="past" x1="44" x2="{_WIDTH - 10}" y1="{y(1):.1f}" y2="{y(1):.1f}"/>',
        f'<line class="since" x1="{x(changed):.1f}" x2="{x(changed):.1f}" y1="4" y2="{_HEIGHT - 20}"/>',
        f'<polyline class="line" points="{points}"/>',
        *(f'<text x="40" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>' for share in (1.0, low)),
        *(f'<text x="{at:.1f}" y="{_HEIGHT - 6}" text-anchor="{side}">{_safe(d)}</text>' for d, side, at in ends),
        "</svg></figure>",
    ])  # fmt: skip
