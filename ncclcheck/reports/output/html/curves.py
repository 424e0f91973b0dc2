"""Latency and bandwidth of each operation by size, against what was expected."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, log10

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ncclcheck.probes.facts import Collective, Expectation, Fit
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.output.html.picture import INK, MARKERS, SERIES, Figure, Table, axis, draw
from ncclcheck.reports.text.words.fold import duration, size

_GOOD_FIT = 0.25  # as in the text report
_HEADERS = ("size", "time", "p95", "busbw GB/s", "expected", "state")
_MOST_OPERATIONS = 24  # pictures on a page; chosen, a saved file may name any number of them
_Series = list[Collective]


def figures(document: Document) -> Iterator[Figure]:
    """One for each operation of which a size was measured."""
    expectation = document.measurements.expectation or Expectation()
    fits = {fit.op: fit for fit in expectation.fits if max(fit.median_error, fit.last_error) <= _GOOD_FIT}
    for number, (op, rows) in enumerate(
        [*_by_operation(document.measurements.collectives).items()][:_MOST_OPERATIONS]
    ):
        drawn = [row for row in rows if row.bytes and row.time_us is not None]
        if drawn:
            yield _figure(f"curve{number}", op, rows, drawn, fits.get(op))


def _by_operation(rows: list[Collective]) -> dict[str, _Series]:
    by_operation: dict[str, _Series] = {}
    for row in sorted(rows, key=lambda row: row.bytes):
        by_operation.setdefault(row.op, []).append(row)
    return by_operation


def _figure(key: str, op: str, rows: _Series, drawn: _Series, fit: Fit | None) -> Figure:
    def paint(canvas: Canvas) -> None:
        left, right = canvas.subplots(1, 2)
        _times(left, drawn, fit)
        _bandwidths(right, [row for row in drawn if row.busbw_gb_s is not None])

    table = Table(_HEADERS, [_cells(row) for row in rows])
    return Figure(key, op, _told(op, drawn), draw(key, (8.4, 2.9), paint), table)


def _times(axes: Axes, rows: _Series, fit: Fit | None) -> None:
    """Median with p95; what the expected bandwidth means in time; the fitted line."""
    for number, series in enumerate(_alike(rows)):
        sizes = [row.bytes for row in series]
        middle = [row.time_us.p50 for row in series if row.time_us]
        upper = [row.time_us.p95 for row in series if row.time_us]
        axes.plot(sizes, middle, markersize=4, label=_label(series), color=SERIES[number], marker=MARKERS[number])
        axes.plot(sizes, upper, color=SERIES[number], linestyle=":", linewidth=1, label="p95")
    for row in rows:
        if (expected := row.expected_gb_s) and (share := _share(row)) and expected.low:
            low, high = (row.bytes * share / bandwidth / 1e3 for bandwidth in (expected.high, expected.low))
            axes.vlines(row.bytes, low, high, color=SERIES[2], linewidth=7, alpha=0.5)
    share = next((known for row in rows if (known := _share(row))), None)
    if fit and share and fit.busbw_gb_s:
        sizes = sorted({row.bytes for row in rows})
        line = [fit.latency_us + count * share / fit.busbw_gb_s / 1e3 for count in sizes]
        axes.plot(sizes, line, color=INK, linestyle="--", linewidth=1, label="fitted line")
    axes.set_yscale("log")
    axes.set_ylim(*_decades(*axes.get_ylim()))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: duration(us)))
    axes.yaxis.set_minor_locator(NullLocator())
    _by_size(axes, rows, "time")


def _bandwidths(axes: Axes, rows: _Series) -> None:
    for number, series in enumerate(_alike(rows)):
        speeds = [row.busbw_gb_s or 0.0 for row in series]
        sizes = [row.bytes for row in series]
        axes.plot(sizes, speeds, markersize=4, label="measured", color=SERIES[number], marker=MARKERS[number])
    label = "expected"
    for row in rows:
        if expected := row.expected_gb_s:
            low, high = expected.low, expected.high
            axes.vlines(row.bytes, low, high, color=SERIES[2], linewidth=7, alpha=0.5, label=label)
            label = "_"
    if not rows:
        axes.text(0.5, 0.5, "no bus bandwidth is defined here", ha="center", transform=axes.transAxes)
    axes.set_ylim(bottom=0)
    _by_size(axes, rows, "bus bandwidth, GB/s")


def _decades(low: float, high: float) -> tuple[float, float]:
    """Whole ones, so that there are ticks."""
    return 10.0 ** floor(log10(low)), 10.0 ** ceil(log10(high))


def _by_size(axes: Axes, rows: _Series, label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=7))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: size(number)))
    axes.tick_params(axis="x", labelrotation=30)
    axis(axes, "", label)
    if rows:
        axes.legend(fontsize=8)


def _alike(rows: _Series) -> list[_Series]:
    """Rows of one type on one number of ranks make a line."""
    lines: dict[tuple[str, int, int], _Series] = {}
    for row in rows:
        lines.setdefault((row.dtype, row.nodes, row.ranks), []).append(row)
    return [*lines.values()][: len(SERIES)]


def _label(series: _Series) -> str:
    return f"median, {series[0].ranks} rank{'s' * (series[0].ranks != 1)}"


def _share(row: Collective) -> float | None:
    """Bus bandwidth over algorithm bandwidth: what of an operation's size crosses a link."""
    return row.busbw_gb_s / row.algbw_gb_s if row.busbw_gb_s and row.algbw_gb_s else None


def _cells(row: Collective) -> tuple[str, ...]:
    times, expected = row.time_us, row.expected_gb_s
    return (
        size(row.bytes),
        duration(times.p50) if times else "-",
        duration(times.p95) if times else "-",
        "-" if row.busbw_gb_s is None else f"{row.busbw_gb_s:.3g}",
        "-" if expected is None else f"{expected.low:.3g} to {expected.high:.3g}",
        {"fail": "FAIL"}.get(row.state, row.state) + (f": {row.reason}" if row.reason else ""),
    )


def _told(op: str, rows: _Series) -> str:
    small, large = rows[0], rows[-1]
    assert small.time_us
    assert large.time_us
    words = [f"{op}: {duration(small.time_us.p50)} for {size(small.bytes)}"]
    if large is not small:
        words.append(f"{duration(large.time_us.p50)} for {size(large.bytes)}")
    if large.busbw_gb_s is not None:
        words.append(f"there {large.busbw_gb_s:.3g} GB/s of bus bandwidth")
    if expected := large.expected_gb_s:
        words.append(f"where {expected.low:.3g} to {expected.high:.3g} are expected ({expected.basis})")
    else:
        words.append("for which there is no expectation")
    return ", ".join(words) + "."
