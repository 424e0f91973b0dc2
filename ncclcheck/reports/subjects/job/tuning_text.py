"""What `tune` measured, as a table: a row for each setting, operation and size."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Forecast, Tried
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.subjects.job import trial, tuning
from ncclcheck.reports.text.fold import duration, size
from ncclcheck.reports.text.wrapping import wrapped

_HEADERS = ("setting", "operation", "size", "without", "with", "faster", "95 %", "so it")
_LEGEND = (
    "time: the median of the jobs' medians, without the setting and with it in turn. faster: the mean of the "
    "pairs, with intervals that hold with 95 % for all settings, sizes and looks together."
)
_FORECAST = "NCCL expects"
_WORDS = {"gains": "gains", "loses": "LOSES", "same": "no difference", "unknown": "?"}


def text(document: Document, width: int) -> str:
    """The block; empty where nothing was tuned."""
    told = document.measurements.tuning
    if told is None:
        return ""
    from tabulate import tabulate  # noqa: PLC0415 - costs `env` 20 ms, which has no table

    expected = {one.bytes: one for one in told.forecasts}
    tried = [*told.tried, *([told.whole] if told.whole else [])]
    headers = (*_HEADERS, *((_FORECAST,) if expected else ()))
    cells = [cell for one in tried for cell in _cells(one, expected, again=one is told.whole)]
    columns = ("left", "left", *["right"] * 5, "left", *(("right",) if expected else ()))
    table = tabulate(cells, headers=headers, tablefmt="plain", colalign=columns, disable_numparse=True)
    head = f"Tuned: {len(told.tried)} settings in pairs of jobs, sizes {told.sizes_from}"
    lines = [f"  {line.rstrip()}" for line in table.splitlines()] if cells else []
    legend = wrapped(_LEGEND, width, first="  ", rest="    ") if any(one.rows for one in tried) else []
    return "\n".join([head, *lines, *legend])


def _cells(tried: Tried, expected: dict[int, Forecast], *, again: bool) -> Iterator[tuple[str, ...]]:
    name = f"again: {tuning.named(tried)}" if again else tuning.named(tried)
    more = ("",) if expected else ()
    if tried.failed:
        yield (name, "-", "-", "-", "-", "-", "-", "does not run", *more)
    for row in tried.rows:
        yield (
            name,
            row.op,
            size(row.bytes) if row.bytes else "-",
            *(duration(trial.middle(times)) if times else "-" for times in (row.without_us, row.with_us)),
            trial.change(row.speedup),
            trial.interval(row),
            _WORDS[row.verdict],
            *((duration(expected[row.bytes].time_us) if row.bytes in expected else "-",) if expected else ()),
        )
        name = ""
