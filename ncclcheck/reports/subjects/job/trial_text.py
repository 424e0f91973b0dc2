"""What `bench --with` measured, as a table: each row without the setting, with it, and the difference."""

from __future__ import annotations

from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.subjects.job import trial as tried
from ncclcheck.reports.text.words.fold import duration, size
from ncclcheck.reports.text.words.wrapping import wrapped

_HEADERS = ("operation", "size", "without", "with", "faster", "95 %", "result")
_LEGEND = (
    "time: the median of the jobs' medians. faster: the mean of the pairs of jobs, with an interval that holds "
    "with 95 % for all rows together."
)
_WORDS = {"gains": "gains", "loses": "LOSES", "same": "within noise", "unknown": "?"}


def text(document: Document, width: int) -> str:
    """The block; empty where nothing was tried, or no pair of jobs came to its end."""
    trial = document.measurements.trial
    if trial is None or not trial.rows:
        return ""
    from tabulate import tabulate  # noqa: PLC0415 - costs `env` 20 ms, which has no table

    head = f"Tried: {tried.setting(trial)}, {trial.pairs} pair{'s' * (trial.pairs != 1)} of jobs in turn"
    cells = [
        (
            row.op,
            size(row.bytes) if row.bytes else "-",
            *(duration(tried.middle(times)) if times else "-" for times in (row.without_us, row.with_us)),
            tried.change(row.speedup),
            tried.interval(row),
            _WORDS[row.verdict],
        )
        for row in trial.rows
    ]
    columns = ("left", *["right"] * 5, "left")
    table = tabulate(cells, headers=_HEADERS, tablefmt="plain", colalign=columns, disable_numparse=True)
    lines = [f"  {line.rstrip()}" for line in table.splitlines()]
    return "\n".join([head, *lines, *wrapped(_LEGEND, width, first="  ", rest="    ")])
