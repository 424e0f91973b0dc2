"""What `tune` measured, as a table: below each setting a row for each operation and size."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Forecast, Tried
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.subjects.job import trial, tuning
from ncclcheck.reports.text.words.fold import duration, many, size
from ncclcheck.reports.text.words.wrapping import wrapped

_HEADERS = ("operation", "size", "without", "with", "faster", "95 %", "result")
_LEGEND = (
    "time: the median of the jobs' medians, without the setting and with it in turn. faster: the mean of the "
    "pairs, with intervals that hold with 95 % for all settings, sizes and looks together."
)
_FORECAST = "NCCL expects"
_WORDS = {"gains": "gains", "loses": "LOSES", "same": "no difference", "unknown": "?"}


def text(document: Document, width: int) -> str:
    """The block; empty where nothing was tuned."""
    tuned = document.measurements.tuning
    if tuned is None:
        return ""
    from tabulate import tabulate  # noqa: PLC0415 - costs `env` 20 ms, which has no table

    expected = {forecast.bytes: forecast for forecast in tuned.forecasts}
    tried = [*tuned.tried, *([tuned.whole] if tuned.whole else [])]
    rows = [[*_cells(tried, expected)] for tried in tried]
    headers = (*_HEADERS, *((_FORECAST,) if expected else ()))
    columns = ("left", *["right"] * 5, "left", *(("right",) if expected else ()))
    cells = [cell for each in rows for cell in each]
    table = tabulate(cells, headers=headers, tablefmt="plain", colalign=columns, disable_numparse=True)
    header, *lines = (f"    {line.rstrip()}" for line in table.splitlines()) if cells else [""]
    head = f"Tuned: {many(len(tuned.tried), 'setting')} in pairs of jobs, sizes {tuned.sizes_from}"
    blocks = [head, *filter(None, [header])]
    for setting, each in zip(tried, rows, strict=True):
        name = f"again: {tuning.named(setting)}" if setting is tuned.whole else tuning.named(setting)
        blocks += [f"  {name}{': does not run' if setting.failed else ''}", *lines[: len(each)]]
        del lines[: len(each)]
    legend = wrapped(_LEGEND, width, first="  ", rest="    ") if cells else []
    return "\n".join([*blocks, *legend])


def _cells(tried: Tried, expected: dict[int, Forecast]) -> Iterator[tuple[str, ...]]:
    for row in tried.rows:
        yield (
            row.op,
            size(row.bytes) if row.bytes else "-",
            *(duration(trial.middle(times)) if times else "-" for times in (row.without_us, row.with_us)),
            trial.change(row.speedup),
            trial.interval(row),
            "may gain" if tuning.may_gain(row) else _WORDS[row.verdict],
            *((duration(expected[row.bytes].time_us) if row.bytes in expected else "-",) if expected else ()),
        )
