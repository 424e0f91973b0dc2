"""A series of one node's figures: whether its level changed, when, and at once or slowly.

Judged on the logarithm of the figure against the fleet's median of the same day, so that what changes for all is
no node's fault. The greatest standardised difference of the means before and after any day is compared with LEAST;
the noise is the node's own from day to day, times by how much the fleet's weeks vary more than its days.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import sqrt
from statistics import fmean, median

# Standard errors. Chosen, with room for noise that is not normal: of 3,000 simulated series of a year none was
# named wrongly, with 2 % noise and with noise that correlates by 0.5 from day to day (benchmarks/fleet.py).
LEAST = 7.0
LEAST_CHANGE = 0.02  # 2 %: less is within what a warm room or another neighbour does; chosen
FEWEST = 20  # results of a node before it has a past
EDGE = 5  # results on either side of a change

# The fleet's median of each day and figure, which the other questions ask for too.
DAILY = """
CREATE OR REPLACE TEMP TABLE daily AS
SELECT metric, date_trunc('day', started) AS day, median(ln(value)) AS usual, count(DISTINCT serial) AS many
FROM measurements GROUP BY ALL
"""
# z: standardised series. The greatest difference, and where, in SQL: all nodes and figures at once.
SQL = f"""
WITH against AS (
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
    Single days that are far off, as a neighbour makes them, do not move it.
    """
    calm = _calm(series)
    before, after = fmean(calm[:step]), fmean(calm[step:])
    sums = _Sums(calm, before)
    best = step, after - before, False
    least = (sums.flat(0, step) + sums.flat(step, len(calm))) * 0.985  # no slow one by luck
    for begun in range(EDGE, len(calm) - EDGE):
        level = sums.mean(0, begun)
        for ended in range(begun + 10, len(calm) + 1, 2):
            left = len(calm) - ended >= EDGE
            low = sums.mean(ended, len(calm)) if left else 2 * sums.mean(begun, ended) - level
            rest = sums.flat(ended, len(calm)) if left else sums.about(ended, len(calm), low)
            squares = sums.flat(0, begun) + sums.fall(begun, ended, level, low) + rest
            if squares < least:
                best, least = (begun, low - level, True), squares
    return best


def _calm(series: Sequence[float]) -> list[float]:
    """The series with each result no further from its week's median than twice what is usual from day to day."""
    steps = [abs(one - other) for one, other in pairwise(series)]
    most = 2 * max(median(steps) / (0.6745 * sqrt(2)), 0.002)
    weeks = [median(series[max(0, at - 3) : at + 4]) for at in range(len(series))]
    return [min(max(one, week - most), week + most) for one, week in zip(series, weeks, strict=True)]


class _Sums:
    """Sums of a series up to each place, so that the squares left by any line are known at once.

    middle: near its mean, taken off for the sums to stay exact.
    """

    def __init__(self, series: Sequence[float], middle: float) -> None:
        own = [one - middle for one in series]
        self._middle = middle
        self._one = [0.0, *accumulate(own)]
        self._two = [0.0, *accumulate(one * one for one in own)]
        self._placed = [0.0, *accumulate(at * one for at, one in enumerate(own))]

    def mean(self, begin: int, end: int) -> float:
        """Of the results from begin to end, without it."""
        return self._middle + (self._one[end] - self._one[begin]) / (end - begin)

    def about(self, begin: int, end: int, level: float) -> float:
        """Squares about a level."""
        off = level - self._middle
        return (
            self._two[end]
            - self._two[begin]
            + off * ((end - begin) * off - 2 * (self._one[end] - self._one[begin]))
        )

    def flat(self, begin: int, end: int) -> float:
        """Squares about their own mean."""
        return self.about(begin, end, self.mean(begin, end))

    def fall(self, begin: int, end: int, level: float, low: float) -> float:
        """Squares about a line that leaves `level` with the first and is at `low` with the last."""
        many, off = end - begin, level - self._middle
        slope = (low - level) / many
        one = self._one[end] - self._one[begin]
        placed = self._placed[end] - self._placed[begin] + (1 - begin) * one  # times 1, 2, ...
        places = many * (many + 1) / 2
        crossed = placed - off * places
        return self.about(begin, end, level) - 2 * slope * crossed + slope**2 * places * (2 * many + 1) / 3


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Of their median, at 99 %: order statistics, whatever their distribution."""
    ordered, n = sorted(values), len(values)
    half = 2.576 * sqrt(n) / 2
    low, high = max(0, int(n / 2 - half)), min(n - 1, int(n / 2 + half))
    return ordered[low], ordered[high]
