"""What every node sends to every other as a map, of many nodes the worst of each block, and rows by node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from statistics import median

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas

from ncclcheck.probes.facts import PairTime
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.output.html.picture import BLANK, INK, Figure, Table, draw, named

MOST_CELLS = 64  # nodes a side drawn one by one: chosen, beyond 64 a cell is smaller than 8 pixels
# a side, where there are more nodes than MOST_CELLS: chosen, a cell stays large enough for its mark
_MOST_BLOCKS = 50
_MOST_NAMES = 24  # along an axis: chosen, more labels overlap at 5 to 7 inches
_HEADERS = ("node", "sends, median", "sends, worst", "receives, median", "receives, worst", "did not succeed")


@dataclass
class PairCell:
    """One direction between two nodes. worst: GB/s of the slowest exchange; failed: how many brought nothing."""

    worst: float | None = None
    failed: int = 0

    def add(self, speed: float | None, *, failed: bool) -> None:
        """One more exchange."""
        self.failed += failed
        if speed is not None:
            self.worst = speed if self.worst is None else min(self.worst, speed)


@dataclass
class Ends:
    """What one node sent and received, by peer."""

    sent: dict[str, PairCell] = field(default_factory=dict)
    got: dict[str, PairCell] = field(default_factory=dict)


_Ways = dict[tuple[str, str], PairCell]


def figure(document: Document) -> Figure | None:
    """None where no pairs were measured."""
    ways = _ways(document.measurements.pairs)
    if not ways:
        return None
    named_first = [entry.name for entry in document.nodes]
    met = {name for way in ways for name in way}
    nodes = [name for name in named_first if name in met] + sorted(met - {*named_first})
    block = 1 if len(nodes) <= MOST_CELLS else ceil(len(nodes) / _MOST_BLOCKS)
    places = {name: number // block for number, name in enumerate(nodes)}
    side = 5.2 if len(places) < MOST_CELLS // 2 else 6.6

    def paint(canvas: Canvas) -> None:
        _paint(canvas, _cells(ways, places), _labels(nodes, block))

    table = Table(_HEADERS, [*_rows(ways, nodes)])
    return Figure(
        "pairs", "Pairs of nodes", _told(ways, nodes, block), draw("pairs", (side + 1, side), paint), table
    )


def _ways(pairs: Iterable[PairTime]) -> _Ways:
    ways: _Ways = {}
    for pair in pairs:
        for a, b, speed in ((pair.a, pair.b, pair.a_to_b_gb_s), (pair.b, pair.a, pair.b_to_a_gb_s)):
            ways.setdefault((a, b), PairCell()).add(speed, failed=pair.state != "ok")
    return ways


def _cells(ways: _Ways, places: dict[str, int]) -> list[list[PairCell]]:
    """Row: who sends; column: who receives; of a block the worst."""
    many = max(places.values()) + 1
    cells = [[PairCell() for _ in range(many)] for _ in range(many)]
    for (a, b), way in ways.items():
        cell = cells[places[a]][places[b]]
        cell.failed += way.failed
        cell.add(way.worst, failed=False)
    return cells


def _labels(nodes: list[str], block: int) -> list[str]:
    return [named(nodes[start]) for start in range(0, len(nodes), block)]


def _paint(canvas: Canvas, cells: list[list[PairCell]], labels: list[str]) -> None:
    axes = canvas.subplots()
    speeds = np.array([[np.nan if way.worst is None else way.worst for way in row] for row in cells])
    colours = mpl.colormaps["cividis"].resampled(32).with_extremes(bad=BLANK)
    top = np.nanmax(speeds) if np.isfinite(speeds).any() else 1.0
    mesh = axes.pcolormesh(np.ma.masked_invalid(speeds), cmap=colours, vmin=0, vmax=top or 1.0, edgecolor="face")
    bad = [(x + 0.5, y + 0.5) for y, row in enumerate(cells) for x, way in enumerate(row) if way.failed]
    if bad:
        across, down = zip(*bad, strict=True)
        axes.scatter(across, down, marker="s", color=BLANK, s=60)
        axes.scatter(across, down, marker="x", color=INK, s=30)
    step = ceil(len(labels) / _MOST_NAMES)
    ticks = [number + 0.5 for number in range(0, len(labels), step)]
    axes.set_xticks(ticks, labels[::step], rotation=90)
    axes.set_yticks(ticks, labels[::step])
    axes.set_xlabel("receives")
    axes.set_ylabel("sends")
    axes.invert_yaxis()
    axes.set_aspect("equal")
    bar = canvas.colorbar(mesh, ax=axes, label="GB/s", shrink=0.7)
    if bar.solids is not None:
        bar.solids.set_rasterized(False)


def _rows(ways: _Ways, nodes: list[str]) -> list[tuple[str, ...]]:
    """The worst node first."""
    ends = {name: Ends() for name in nodes}
    for (a, b), way in ways.items():
        ends[a].sent[b] = ends[b].got[a] = way
    return [_row(name, ends[name]) for name in sorted(nodes, key=lambda name: _badness(ends[name]))]


def _badness(ends: Ends) -> tuple[int, float]:
    every = [*ends.sent.values(), *ends.got.values()]
    speeds = [way.worst for way in every if way.worst is not None]
    return -sum(way.failed for way in ends.sent.values()), min(speeds, default=0.0)


def _row(name: str, ends: Ends) -> tuple[str, ...]:
    failed = [peer for peer, way in ends.sent.items() if way.failed]
    failures = f"{len(failed)}, with {', '.join(failed[:3])}" if failed else "0"
    return (name, *_side(ends.sent, "to"), *_side(ends.got, "from"), failures)


def _side(peers: dict[str, PairCell], word: str) -> tuple[str, str]:
    known = {peer: way.worst for peer, way in peers.items() if way.worst is not None}
    if not known:
        return "-", "-"
    worst = min(known, key=lambda peer: known[peer])
    return f"{median(known.values()):.3g}", f"{known[worst]:.3g} {word} {worst}"


def _told(ways: _Ways, nodes: list[str], block: int) -> str:
    known = {ends: way.worst for ends, way in ways.items() if way.worst is not None}
    failed = sum(way.failed > 0 for way in ways.values())
    words = [f"{len(nodes)} nodes, {len(ways)} of {len(nodes) * (len(nodes) - 1)} directions measured"]
    if known:
        worst = min(known, key=lambda ends: known[ends])
        words.append(f"median {median(known.values()):.3g} GB/s")
        words.append(f"the worst is {known[worst]:.3g} GB/s from {worst[0]} to {worst[1]}")
    if failed:
        words.append(f"{failed} directions marked with a cross did not succeed")
    if block > 1:
        words.append(
            f"a cell is the worst of {block} x {block} nodes, labelled by the first; the rows below are by node"
        )
    return "; ".join(words) + ". Grey: not measured."
