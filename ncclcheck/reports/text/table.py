"""The table of measured collectives, each number beside its expectation."""

from __future__ import annotations

from ncclcheck.probes.facts import Collective, Expectation, Fit
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.text import measured
from ncclcheck.reports.text.words.fold import duration, many, size
from ncclcheck.reports.text.words.wrapping import wrapped

_HEADERS = ("operation", "size", "time", "p95", "busbw", "expected", "state")
_P95, _EXPECTED = 3, 5  # columns of the table, from 0: those that go first where it is too wide or they are empty
_GOOD_FIT = 0.25  # of a row's time: beyond it no straight line describes what was measured
_Cells = tuple[str, ...]


def collectives(document: Document, width: int) -> str:
    """The table with what all rows share said once above it; empty where nothing was measured."""
    rows = document.measurements.collectives
    if not rows:
        return ""
    cells = [cell for group in _by_operation(rows) for cell in _rows(group)]
    columns = list(range(len(_HEADERS)))
    if not any(row.expected_gb_s for row in rows):
        columns.remove(_EXPECTED)
    lines = _table(cells, columns)
    if max(map(len, lines)) > width:
        columns.remove(_P95)
        lines = _table(cells, columns)
    return "\n".join([*_shared(document, width), "", *lines, *_remarks(document, width)])


def _shared(document: Document, width: int) -> list[str]:
    rows = document.measurements.collectives
    dtype = next((f"{row.dtype}, " for row in rows if row.dtype not in ("", "object")), "")
    ranks, nodes = many(rows[0].ranks, "rank"), many(rows[0].nodes, "node")
    lines = [f"  job        {ranks} on {nodes} in one communicator, {dtype}{document.job.backend}"]
    if startup := document.measurements.startup_s:
        words = (
            f"import torch {startup.import_:.1f} s, rendezvous {startup.rendezvous:.1f} s, "
            f"init {startup.init:.2f} s, first collective {duration(startup.first_collective * 1e6)}"
        )
        lines += wrapped(words, width, first="  start      ", rest=" " * 13)
    return lines + measured.lines(document.measurements, width)


def _table(cells: list[_Cells], columns: list[int]) -> list[str]:
    from tabulate import tabulate  # noqa: PLC0415 - costs `env` 20 ms, which has no table

    body = tabulate(
        [[row[column] for column in columns] for row in cells],
        headers=[_HEADERS[column] for column in columns],
        tablefmt="plain",
        colalign=["left" if column in (0, _EXPECTED, len(_HEADERS) - 1) else "right" for column in columns],
        disable_numparse=True,
    )
    return ["  " + line.rstrip() for line in body.splitlines()]


def _by_operation(rows: list[Collective]) -> list[list[Collective]]:
    """Rows in groups of one operation each, by size; they were measured in another order."""
    groups: dict[str, list[Collective]] = {}
    for row in rows:
        groups.setdefault(row.op, []).append(row)
    return [sorted(group, key=lambda row: row.bytes) for group in groups.values()]


def _rows(group: list[Collective]) -> list[_Cells]:
    """The rows of one operation; skipped ones of one reason are one row."""
    skipped: dict[str, list[Collective]] = {}
    for row in group:
        if row.time_us is None:
            skipped.setdefault(row.reason, []).append(row)
    measured = [_row(row) for row in group if row.time_us is not None]
    return measured + [_skipped(rows, len(group)) for rows in skipped.values()]


def _skipped(rows: list[Collective], of: int) -> _Cells:
    sizes = f"{'all ' if len(rows) == of else ''}{len(rows)} sizes" if len(rows) > 1 else _size(rows[0])
    return (rows[0].op, sizes, "-", "-", "-", "-", "skipped")


def _size(row: Collective) -> str:
    return size(row.bytes) if row.bytes else "-"


def _row(row: Collective) -> _Cells:
    assert row.time_us is not None
    expected = row.expected_gb_s
    return (
        row.op,
        _size(row),
        duration(row.time_us.p50),
        duration(row.time_us.p95),
        "-" if row.busbw_gb_s is None else f"{row.busbw_gb_s:.3g}",
        "-" if expected is None else f"{expected.low:.3g}-{expected.high:.3g}",
        "FAIL" if row.state == "fail" else row.state,
    )


def _remarks(document: Document, width: int) -> list[str]:
    """Why rows were skipped, and why there is no expectation; each said once."""
    rows = document.measurements.collectives
    remarks = _why_skipped(rows)
    expectation = document.measurements.expectation or Expectation()
    if rows[0].ranks == 1:
        remarks.append("busbw: none for one rank, for nothing crosses a link.")
    elif any(row.expected_gb_s for row in rows):
        remarks.append(f"expected busbw: of large sizes, from {expectation.basis}.")
    else:
        remarks.append(f"expected busbw: none, {_no_expectation(expectation)}.")
    if fits := [_fit(fit) for fit in expectation.fits if max(fit.median_error, fit.last_error) <= _GOOD_FIT]:
        remarks.append(f"latency + busbw, fitted over sizes: {', '.join(fits)}.")
    remarks.append("time: the slowest rank's, median over iterations; busbw in GB/s of 1e9 bytes.")
    return [line for remark in remarks for line in wrapped(remark, width, first="  ", rest="    ")]


def _why_skipped(rows: list[Collective]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.time_us is None:
            reasons.setdefault(row.reason, []).append(row.op)
    return [f"skipped {', '.join(dict.fromkeys(ops))}: {reason}" for reason, ops in reasons.items()]


def _no_expectation(expectation: Expectation) -> str:
    return f"for {expectation.reason}" if expectation.reason else "for latency rules all sizes that were measured"


def _fit(fit: Fit) -> str:
    return f"{fit.op} {duration(fit.latency_us)} + {fit.busbw_gb_s:.3g} GB/s"
