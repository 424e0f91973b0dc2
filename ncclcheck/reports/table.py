"""The table of measured collectives, each number beside its expectation."""

from __future__ import annotations

import textwrap

from ncclcheck.probes.facts import Collective
from ncclcheck.reports.fold import duration, size
from ncclcheck.reports.jsondoc import Document

_HEADERS = ("operation", "size", "time", "p95", "busbw", "expected", "state")


def collectives(document: Document, width: int) -> str:
    """The table with what all rows share said once above it; empty where nothing was measured."""
    rows = document.measurements.collectives
    if not rows:
        return ""
    from tabulate import tabulate  # noqa: PLC0415 - costs `env` 20 ms, which has no table

    first = rows[0]
    shared = (
        f"  {first.ranks} ranks on {first.nodes} nodes in one communicator, {first.dtype}, {document.job.backend}"
    )
    if startup := document.measurements.startup_s:
        shared += (
            f"\n  start     import torch {startup.import_:.1f} s, rendezvous {startup.rendezvous:.1f} s, "
            f"init {startup.init:.2f} s, first collective {startup.first_collective * 1000:.0f} ms"
        )
    body = tabulate(
        [_row(row) for row in _by_operation(rows)],
        headers=_HEADERS,
        tablefmt="plain",
        colalign=("left", "right", "right", "right", "right", "left", "left"),
        disable_numparse=True,
    )
    return "\n".join([shared, "", *("  " + line for line in body.splitlines()), *_remarks(document, width)])


def _by_operation(rows: list[Collective]) -> list[Collective]:
    """Measured by size, read by operation."""
    order = list(dict.fromkeys(row.op for row in rows))
    return sorted(rows, key=lambda row: (order.index(row.op), row.bytes))


def _row(row: Collective) -> tuple[str, ...]:
    bytes_ = size(row.bytes) if row.bytes else "-"
    if row.time_us is None:
        return (row.op, bytes_, "-", "-", "-", "-", row.state)
    expected = row.expected_gb_s
    return (
        row.op,
        bytes_,
        duration(row.time_us.p50),
        duration(row.time_us.p95),
        "-" if row.busbw_gb_s is None else f"{row.busbw_gb_s:.3g} GB/s",
        "none" if expected is None else f"{expected.low:.3g}-{expected.high:.3g}",
        "FAIL" if row.state == "fail" else row.state,
    )


def _remarks(document: Document, width: int) -> list[str]:
    """Why rows were skipped, and why there is no expectation; each said once."""
    rows = document.measurements.collectives
    remarks = [f"skipped: {reason}" for reason in dict.fromkeys(r.reason for r in rows if r.reason)]
    if any(r.time_us is not None and r.expected_gb_s is None for r in rows):
        where = (
            "one machine's memory carries all traffic"
            if document.job.simulated
            else "no link between nodes is used"
        )
        if rows[0].nodes == 1 or document.job.simulated:
            remarks.append(f"expected: none, for {where}; these figures say nothing about a network.")
        else:
            remarks.append("expected: none, for no bound of this network is known to this version.")
    if rows[0].ranks == 1:
        remarks.append("busbw: undefined for one rank, for nothing crosses a link.")
    remarks.append("time is the median over iterations of the slowest rank; GB/s are 1e9 bytes a second.")
    return [
        line for r in remarks for line in textwrap.wrap(r, width, initial_indent="  ", subsequent_indent="    ")
    ]
