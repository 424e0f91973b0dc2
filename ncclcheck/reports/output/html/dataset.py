"""Samples a second by number of loader workers, of the nodes that give least."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from ncclcheck.probes.facts.data import DataReport, Speed
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.output.html.picture import INK, MARKERS, SERIES, Figure, Table, axis, draw, named
from ncclcheck.reports.subjects.data import curve

_HEADERS = (
    "node",
    "dataset",
    "workers",
    "samples/s",
    "slowest quarter",
    "fastest quarter",
    "first batch after, s",
)
_Known = list[tuple[DataReport, Speed]]


def figure(document: Document) -> Figure | None:
    """None where no speed was measured."""
    reports = document.measurements.data
    known = [(report, report.speed) for report in reports if report.speed and curve.plain(report.speed)]
    if not known:
        return None
    known.sort(key=lambda row: curve.most(row[1]))

    def paint(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for number, (report, speed) in enumerate(known[: len(SERIES)]):
            _line(axes, number, named(report.node), speed)
        if needs := [speed.need for _, speed in known if speed.need]:
            axes.axhline(max(needs), color=INK, linestyle="--", linewidth=1, label="needed by a rank")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis(axes, "loader workers", "samples/s")
        axes.legend(fontsize=8)

    rows = [row for report, speed in known for row in _rows(report, speed)]
    svg = draw("dataset", (8.4, 2.9), paint)
    return Figure("dataset", "The dataset's speed", _told(known), svg, Table(_HEADERS, rows))


def _line(axes: Axes, number: int, name: str, speed: Speed) -> None:
    points = curve.plain(speed)
    workers = [point.workers for point in points]
    rates = [point.samples_s for point in points]
    axes.plot(workers, rates, markersize=4, label=name, color=SERIES[number], marker=MARKERS[number])
    lows, highs = [point.low for point in points], [point.high for point in points]
    axes.fill_between(workers, lows, highs, color=SERIES[number], alpha=0.2, linewidth=0)


def _rows(report: DataReport, speed: Speed) -> Iterator[tuple[str, ...]]:
    for point in curve.plain(speed):
        rates = map(curve.rate, (point.samples_s, point.low, point.high))
        yield (report.node, report.factory, str(point.workers), *rates, f"{point.start_s:.2f}")


def _told(known: _Known) -> str:
    report, slowest = known[0]
    words = f"on {report.node}, by workers, samples a second: {curve.by_workers(slowest)}"
    need = (
        f"; a rank needs {curve.rate(slowest.need)}" if slowest.need else "; no need was given, so no expectation"
    )
    left = f"; drawn are the {len(SERIES)} slowest of {len(known)} nodes" if len(known) > len(SERIES) else ""
    return f"{words}{need}{left}."
