"""Rows of two benches, by the confidence intervals of their medians: better, same, worse, inconclusive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from ncclcheck.probes.facts import Collective, Times, replace

FLOOR_PERCENT = 10.0  # by which two runs of one cluster may differ (BEN006.floor_percent): chosen, see its page
# simulated nodes share the cores of one host, whose other load may double a time: chosen
SIMULATED_FLOOR_PERCENT = 100.0
_FEWEST_ITERATIONS = 6  # of fewer than 6 no order statistics enclose the median in 95 of 100 runs (1 - 2 / 2**n)

RowVerdict = Literal["worse", "better", "same", "inconclusive", "incomparable"]
Key = tuple[str, int, str]


class RowSide(Struct, frozen=True, kw_only=True):
    """One of the two figures of a row; low and high enclose the true median in 95 of 100 runs, or are null."""

    p50_us: float
    p95_us: float
    low_us: float | None
    high_us: float | None
    busbw_gb_s: float | None
    iterations: int


class RowChange(Struct, frozen=True, kw_only=True):
    """One row of both. speed: after against before, 1.0 is the same; low and high enclose it."""

    op: str
    bytes: int
    dtype: str
    verdict: RowVerdict
    reason: str = ""
    before: RowSide | None = None
    after: RowSide | None = None
    speed: float | None = None
    speed_low: float | None = None
    speed_high: float | None = None


def compare_rows(
    before: Sequence[Collective], after: Sequence[Collective], differs: str, floor_percent: float = FLOOR_PERCENT
) -> list[RowChange]:
    """Every row that one of the two measured. differs: why none of them can be compared; empty if they can."""
    old, new = _by_key(before), _by_key(after)
    keys = [key for key in dict.fromkeys([*old, *new]) if _measured(old.get(key)) or _measured(new.get(key))]
    return [_compare(key, old.get(key), new.get(key), differs, floor_percent) for key in keys]


def _by_key(rows: Sequence[Collective]) -> dict[Key, Collective]:
    return {(row.op, row.bytes, row.dtype): row for row in rows}


def _measured(row: Collective | None) -> bool:
    return row is not None and row.time_us is not None


def _compare(key: Key, old: Collective | None, new: Collective | None, differs: str, floor: float) -> RowChange:
    before, after = _side(old), _side(new)
    if before is None or after is None:
        verdict, reason = _one_sided(old, new)
    elif old is not None and new is not None and (old.correct is False) != (new.correct is False):
        verdict = "worse" if new.correct is False else "better"
        reason = "wrong results " + ("after, none before" if verdict == "worse" else "before, none after")
    elif differs:
        verdict, reason = "incomparable", differs
    else:
        verdict, reason = _judge(before, after, floor)
    op, size, dtype = key
    row = RowChange(op=op, bytes=size, dtype=dtype, verdict=verdict, reason=reason, before=before, after=after)
    return row if before is None or after is None else _with_speed(row, before, after)


def _one_sided(old: Collective | None, new: Collective | None) -> tuple[RowVerdict, str]:
    missing, which = (new, "after") if _measured(old) else (old, "before")
    why = f": {missing.reason}" if missing is not None and missing.reason else ""
    return "incomparable", f"not measured {which}{why}"


def _side(row: Collective | None) -> RowSide | None:
    if row is None or row.time_us is None:
        return None
    low, high = _interval(row.time_us, row.iterations)
    return RowSide(
        p50_us=row.time_us.p50,
        p95_us=row.time_us.p95,
        low_us=low,
        high_us=high,
        busbw_gb_s=row.busbw_gb_s,
        iterations=row.iterations,
    )


def _interval(times: Times, iterations: int) -> tuple[float, float] | tuple[None, None]:
    """As saved. Older files lack it; from six iterations on it lies between the least time and p95."""
    if times.median_low is not None and times.median_high is not None:
        return times.median_low, times.median_high
    return (times.min, times.p95) if iterations >= _FEWEST_ITERATIONS else (None, None)


def _judge(before: RowSide, after: RowSide, floor_percent: float) -> tuple[RowVerdict, str]:
    """Intervals further apart than runs of one machine are; the same both ways round."""
    near, floor = 1 + min(floor_percent, FLOOR_PERCENT) / 100, 1 + floor_percent / 100
    if max(before.p50_us, after.p50_us) <= near * min(before.p50_us, after.p50_us):
        return "same", ""
    if before.low_us is None or after.low_us is None:
        return "inconclusive", f"fewer than {_FEWEST_ITERATIONS} iterations show nothing"
    if _slower(after, before, floor):
        return "worse", ""
    if _slower(before, after, floor):
        return "better", ""
    if _slower(after, before, near) or _slower(before, after, near):
        return "inconclusive", f"runs of an unchanged machine differ by up to {floor_percent:g} %"
    return "inconclusive", "the times of each run vary more than they differ"


def _slower(side: RowSide, other: RowSide, floor: float) -> bool:
    """Whether intervals lie apart, and the usual iteration of one is slower than nearly all of the other.

    An interval tells how well the median of one run is known, not how far from it the next run's will be: on a
    busy machine that is what p95 shows.
    """
    if side.low_us is None or other.high_us is None:
        return False
    return side.low_us > floor * other.high_us and side.p50_us > other.p95_us


def _with_speed(row: RowChange, before: RowSide, after: RowSide) -> RowChange:
    return replace(
        row,
        speed=_over(before.p50_us, after.p50_us),
        speed_low=_over(before.low_us, after.high_us),
        speed_high=_over(before.high_us, after.low_us),
    )


def _over(first: float | None, second: float | None) -> float | None:
    return first / second if first is not None and second else None
