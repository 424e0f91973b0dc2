"""The alpha-beta fit of one operation: time = latency + size / bandwidth, and where bandwidth rules."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ncclcheck.probes.facts import Collective, Fit

_LEAST_SIZES = 3  # message sizes: two would fit any line exactly
_ROUNDS = 40  # iterations of the reweighted fit; more change nothing that is printed; chosen
_NEAR = 1e-4  # relative error below which a point gains no more weight, so that none divides by zero; chosen
_MOST = 1e6  # relative error, a bound against hostile numbers in saved files; chosen
_LEAST_US = 1e-3  # no call is done in a nanosecond
_LEAST_A_BYTE = 1e-12  # microseconds: a billion GB/s
_LATENCY_SHARE = 0.1  # share of a row's time that may be latency where bandwidth is judged; chosen
_CAREFUL_US = 500.0  # as long as four nodes need over EFA, the slowest that was published


def fit(rows: Sequence[Collective]) -> Fit | None:
    """Latency and bandwidth of one operation; None below three sizes, or where time does not grow with size.

    The sum of relative errors is made small, not that of their squares: one row that was disturbed counts for
    little, and a microsecond of 40 counts as much as a second of 40,000,000.
    """
    timed = [(float(row.bytes), row.time_us.p50) for row in rows if row.time_us and row.busbw_gb_s]
    points = [(size, us) for size, us in timed if us >= _LEAST_US]
    if len({size for size, _ in points}) < _LEAST_SIZES:
        return None
    latency, per_byte = _line(points)
    if per_byte < _LEAST_A_BYTE:
        return None
    errors = [min(_MOST, abs(latency + per_byte * size - us) / us) for size, us in sorted(points)]
    factor = next(_factor(row) for row in rows if row.busbw_gb_s)
    return Fit(
        op=rows[0].op,
        sizes=len(points),
        latency_us=latency,
        busbw_gb_s=factor / per_byte / 1e3,
        median_error=statistics.median(errors),
        worst_error=max(errors),
        last_error=errors[-1],
    )


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Microseconds at size 0, and for each byte; neither is below 0."""
    weights = [1.0 / us**2 for _, us in points]
    latency = per_byte = 0.0
    for _ in range(_ROUNDS):
        latency, per_byte = _weighted(points, weights)
        weights = [1.0 / us**2 / max(_NEAR, abs(latency + per_byte * size - us) / us) for size, us in points]
    return latency, per_byte


def _weighted(points: Sequence[tuple[float, float]], weights: Sequence[float]) -> tuple[float, float]:
    """The line of least weighted squares; through 0 where it would begin below it."""
    total = sum(weights)
    size = sum(w * s for w, (s, _) in zip(weights, points, strict=True)) / total
    time = sum(w * t for w, (_, t) in zip(weights, points, strict=True)) / total
    spread = sum(w * (s - size) ** 2 for w, (s, _) in zip(weights, points, strict=True))
    slope = sum(w * (s - size) * (t - time) for w, (s, t) in zip(weights, points, strict=True)) / spread
    if (start := time - slope * size) >= 0:
        return start, slope
    squares = sum(w * s * s for w, (s, _) in zip(weights, points, strict=True))
    return 0.0, sum(w * s * t for w, (s, t) in zip(weights, points, strict=True)) / squares


def _factor(row: Collective) -> float:
    """busbw / algbw of the operation, as nccl-tests defines it: 2 at most."""
    return min(2.0, (row.busbw_gb_s or 0.0) / (row.algbw_gb_s or 1.0))


def latency_share(row: Collective, line: Fit | None, gb_s: float) -> float:
    """How much of a row's time is latency: by the fit, else by a careful guess and the bandwidth expected."""
    if line and row.time_us:
        return line.latency_us / max(_LEAST_US, row.time_us.p50)
    return _CAREFUL_US / (_CAREFUL_US + _factor(row) * row.bytes / max(1e-9, gb_s) / 1e3)


def is_large(row: Collective, line: Fit | None, gb_s: float) -> bool:
    """Whether bandwidth rules this row: latency is at most a tenth of its time, and it has a MiB or more."""
    return bool(row.busbw_gb_s) and row.bytes >= 2**20 and latency_share(row, line, gb_s) <= _LATENCY_SHARE


def reached(rows: Sequence[Collective], line: Fit | None, gb_s: float) -> float | None:
    """The bandwidth of an operation: its best large row, else the fit's if a row is half way there; else None."""
    measured = [row for row in rows if row.busbw_gb_s]
    large = [row.busbw_gb_s for row in measured if row.busbw_gb_s and is_large(row, line, gb_s)]
    if large:
        return max(large)
    near = line and any(row.bytes >= 2**20 and latency_share(row, line, gb_s) <= 0.5 for row in measured)
    return line.busbw_gb_s if line and near else None
