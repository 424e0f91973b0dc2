"""A series of one node's figures: whether its level changed, when, and at once or slowly.

Judged on the logarithm of the figure against the fleet's median of the same day, so that what changes for all is
no node's fault. The greatest standardised difference of the means before and after any day is compared with LEAST;
the noise is the node's own from day to day, times by how much the fleet's weeks vary more than its days.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean

# Standard errors. Chosen, with room for noise that is not normal: of 3,000 simulated series of a year none was
# named wrongly, with 2 % noise and with noise that correlates by 0.5 from day to day (benchmarks/fleet.py).
LEAST = 7.0
LEAST_CHANGE = 0.02  # 2 %: less is within what a warm room or another neighbour does; chosen
FEWEST = 20  # results of a node before it has a past
EDGE = 5  # results on either side of a change

# z: standardised series. The greatest difference, and where, in SQL: all nodes and figures at once.
SQL = f"""
WITH daily AS (
    SELECT metric, date_trunc('day', started) AS day, median(ln(value)) AS usual, count(DISTINCT serial) AS many
    FROM measurements GROUP BY ALL
), against AS (
    SELECT m.serial, m.metric, m.started,
           (ln(m.value) - CASE WHEN many >= 5 THEN usual ELSE 0 END)
           * CASE WHEN more_is_better THEN 1 ELSE -1 END AS r,
           row_number() OVER (PARTITION BY m.serial, m.metric ORDER BY m.started) AS k
    FROM measurements m JOIN daily d ON d.metric = m.metric AND d.day = date_trunc('day', m.started)
), steps AS (
    SELECT *, r - lag(r) OVER w AS step, avg(r) OVER (w ROWS 6 PRECEDING) AS week,
    FROM against WINDOW w AS (PARTITION BY serial, metric ORDER BY k)
), weeks AS (
    SELECT serial, metric, week - lag(week, 7) OVER (PARTITION BY serial, metric ORDER BY k) AS turn, k FROM steps
), own AS (
    SELECT s.serial, s.metric, count(*) AS n, median(r) AS middle,
           greatest(median(abs(step)) / (0.6745 * sqrt(2)), 0.002) AS daily,
           sqrt(7) * median(abs(turn)) FILTER (s.k > 13) / (0.6745 * sqrt(2)) AS weekly
    FROM steps s JOIN weeks USING (serial, metric, k) GROUP BY ALL HAVING n >= {FEWEST}
), noise AS (
    SELECT *, daily * greatest(1, coalesce(median(weekly / daily) OVER (PARTITION BY metric), 1)) AS sigma FROM own
), sums AS (
    SELECT serial, metric, started, k, n,
           sum(greatest(-6, least(6, (r - middle) / sigma))) OVER (PARTITION BY serial, metric ORDER BY k) AS s,
           sum(greatest(-6, least(6, (r - middle) / sigma))) OVER (PARTITION BY serial, metric) AS whole
    FROM against JOIN noise USING (serial, metric)
), tested AS (
    SELECT serial, metric, k, (whole * k / n - s) / sqrt(k * (n - k)::DOUBLE / n) AS t
    FROM sums WHERE k BETWEEN {EDGE} AND n - {EDGE}
)
SELECT serial, metric, arg_min(k, t) AS k FROM tested GROUP BY ALL HAVING min(t) < -{LEAST}
"""


def placed(series: Sequence[float], step: int) -> tuple[int, float, bool]:
    """Where the change of a series began, how large it is in its logarithm, and whether it came slowly.

    step: results before the change, if it came at once. A slow one is a line down to a new level that fits better.
    """
    before, after = fmean(series[:step]), fmean(series[step:])
    best = step, after - before, False
    least = _squares(series, [before] * step + [after] * (len(series) - step)) * 0.97  # no slow one by luck
    for begun in range(EDGE, len(series) - EDGE, 3):
        for ended in range(begun + 10, len(series) + 1, 7):
            level = fmean(series[:begun])
            left = len(series) - ended >= EDGE
            low = fmean(series[ended:]) if left else 2 * fmean(series[begun:ended]) - level
            fall = [level + (low - level) * (at + 1) / (ended - begun) for at in range(ended - begun)]
            if (squares := _squares(series, [level] * begun + fall + [low] * (len(series) - ended))) < least:
                best, least = (begun, low - level, True), squares
    return best


def _squares(series: Sequence[float], told: Sequence[float]) -> float:
    return sum((one - other) ** 2 for one, other in zip(series, told, strict=True))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Of their median, at 99 %: order statistics, whatever their distribution."""
    ordered, n = sorted(values), len(values)
    half = 2.576 * sqrt(n) / 2
    low, high = max(0, int(n / 2 - half)), min(n - 1, int(n / 2 + half))
    return ordered[low], ordered[high]
