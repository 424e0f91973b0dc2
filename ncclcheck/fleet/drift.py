"""A series of one node's figures: whether its level changed, when, and at once or slowly.

Judged on the logarithm of the figure against the fleet's median of the same day, so that what changes for all is
no node's fault. In SQL, for all nodes and figures at once, the greatest standardised difference of the means
before and after any few days is compared with LEAST. Of those that are found, every day and every duration is
weighed by how well a fall that begins then fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import exp, sqrt
from statistics import fmean, median
from typing import NamedTuple

# Standard errors. Chosen, with room for noise that is not normal (benchmarks/fleet.py --null).
LEAST = 7.0
LEAST_CHANGE = 0.02  # 2 %: less is within what a warm room or another neighbour does; chosen
FEWEST = 20  # results of a node before it has a past
EDGE = 5  # results on either side of a change
# Results over which a slow fall may go, each as likely; all of them together as likely as a fall at once. Chosen.
_TAKES = (7, 14, 21, 28, 35, 42, 56, 84)
_WEEK = 7  # results: the week in which it is likeliest to have begun is told

# The fleet's median of each day and figure, which the other questions ask for too.
DAILY = """
CREATE OR REPLACE TEMP TABLE daily AS
SELECT metric, started::DATE AS day, median(ln(value)) AS usual, count(DISTINCT serial) AS many
FROM measurements GROUP BY ALL
"""
SPAN = "SELECT coalesce(date_diff('day', min(day), max(day)), 0) FROM daily"


def changed(span: int) -> str:
    """SQL for serial and figure of each series that fell. span: days from the first result to the last.

    The days are cut into parts of one to three, of which the median counts: single days that are far off are no
    change, and a year of 1,000 nodes is 360,000 numbers and not a million. The noise is the node's own from part
    to part, times by how much the fleet's weeks vary more than that, and at least 0.7 of what is usual in the
    fleet: of 3,000 series some look far too calm by chance.
    """
    days = max(1, min(3, span // 40))
    week = -(-7 // days)  # parts
    return f"""
WITH parts AS (
    SELECT serial, metric, date_diff('day', DATE '2000-01-01', started::DATE) // {days} AS part,
           count(*) AS results,
           median((ln(value) - CASE WHEN many >= 5 THEN usual ELSE 0 END)
                  * CASE WHEN more_is_better THEN 1 ELSE -1 END) AS r
    FROM measurements m JOIN daily d USING (metric) WHERE d.day = m.started::DATE GROUP BY ALL
), steps AS (
    SELECT *, row_number() OVER w AS k, r - lag(r) OVER w AS step,
           avg(r) OVER (w ROWS {week - 1} PRECEDING) AS week
    FROM parts WINDOW w AS (PARTITION BY serial, metric ORDER BY part)
), turns AS (
    SELECT *, week - lag(week, {week}) OVER (PARTITION BY serial, metric ORDER BY k) AS turn FROM steps
), own AS (
    SELECT serial, metric, count(*) AS n, median(r) AS middle,
           greatest(median(abs(step)) / (0.6745 * sqrt(2)), 0.002) AS own,
           sqrt({week}) * median(abs(turn)) FILTER (k >= {2 * week}) / (0.6745 * sqrt(2)) AS weekly
    FROM turns GROUP BY ALL HAVING sum(results) >= {FEWEST}
), noise AS (
    SELECT *, greatest(own, 0.7 * median(own) OVER (PARTITION BY metric))
              * greatest(1, coalesce(median(weekly / own) OVER (PARTITION BY metric), 1)) AS sigma
    FROM own
), sums AS (
    SELECT serial, metric, k, n, sum(z) OVER (PARTITION BY serial, metric ORDER BY k) AS s,
           sum(z) OVER (PARTITION BY serial, metric) AS whole
    FROM (SELECT serial, metric, k, n, greatest(-6, least(6, (r - middle) / sigma)) AS z
          FROM steps JOIN noise USING (serial, metric))
)
SELECT serial, metric FROM sums WHERE k < n
GROUP BY ALL HAVING min((whole * k / n - s) / sqrt(k * (n - k)::DOUBLE / n)) < -{LEAST}
"""


class Fall(NamedTuple):
    """Where the fall of a series began, how large it is in its logarithm, and whether it came slowly."""

    begun: int
    change: float
    slowly: bool


class _StepFit(NamedTuple):
    """gain: the squares that it explains beyond one level. takes: results until it is whole; 0: at once."""

    gain: float
    begun: int
    takes: int
    change: float


def placed(series: Sequence[float]) -> Fall | None:
    """The fall of a series; None where it falls nowhere.

    What is told is the week in which it began with the greatest probability.
    """
    calm = _calm(series)
    fits = [*_fits(calm)]
    if not fits:
        return None
    best = max(fits)
    spread = max(
        (sum(value * value for value in calm) - len(calm) * fmean(calm) ** 2 - best.gain) / len(calm), 1e-8
    )
    likely, slow = [0.0] * (len(calm) + 1), 0.0
    for fit in fits:
        share = exp((fit.gain - best.gain) / (2 * spread)) / (2 * len(_TAKES) if fit.takes else 2)
        likely[fit.begun] += share
        slow += share if fit.takes else 0.0
    return Fall(_likeliest(likely), best.change, slow > sum(likely) / 2)


def _likeliest(likely: Sequence[float]) -> int:
    """The middle of the week about a day that holds most."""
    sums = [0.0, *accumulate(likely)]
    ranges = [(max(0, at - _WEEK), min(len(likely), at + _WEEK + 1)) for at in range(len(likely))]
    begin, end = max(ranges, key=lambda span: sums[span[1]] - sums[span[0]])
    return round(sum(at * likely[at] for at in range(begin, end)) / (sums[end] - sums[begin]))


def _fits(series: Sequence[float]) -> Iterator[_StepFit]:
    """Every begin and duration of a fall from one level to another, with the levels that fit best (least squares).

    Of the shape g (0 before, 1 after, a line between) and the series r, the sums of g, g*g and g*r are enough; the
    sums up to each place give them at once.
    """
    middle, many = fmean(series), len(series)
    own = [value - middle for value in series]
    sums, placed_sums = [0.0, *accumulate(own)], [0.0, *accumulate(at * value for at, value in enumerate(own))]
    for begun in range(EDGE, many - EDGE + 1):
        for takes in (0, *_TAKES):
            falling = min(takes, many - begun)
            end = begun + falling
            linear = many - end + (falling * (falling + 1) / (2 * takes) if takes else 0.0)
            quadratic = float(many - end)
            both = sums[many] - sums[end]
            if takes:
                falling_squared = falling * (falling + 1) * (2 * falling + 1) / (6 * takes * takes)
                rising = placed_sums[end] - placed_sums[begun] - (begun - 1) * (sums[end] - sums[begun])
                quadratic, both = quadratic + falling_squared, both + rising / takes
            squares = quadratic - linear * linear / many
            if both < 0 and squares > 1e-9:
                change = both / squares * (falling / takes if takes else 1.0)
                yield _StepFit(both * both / squares, begun, takes, change)


def _calm(series: Sequence[float]) -> list[float]:
    """The series with each result no further from its week's median than twice what is usual from day to day."""
    steps = [abs(value - other) for value, other in pairwise(series)]
    most = 2 * max(median(steps) / (0.6745 * sqrt(2)), 0.002)
    weeks = [median(series[max(0, at - 3) : at + 4]) for at in range(len(series))]
    return [min(max(value, week - most), week + most) for value, week in zip(series, weeks, strict=True)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Of their median, at 99 %: order statistics, whatever their distribution."""
    ordered, n = sorted(values), len(values)
    half = 2.576 * sqrt(n) / 2
    low, high = max(0, int(n / 2 - half)), min(n - 1, int(n / 2 + half))
    return ordered[low], ordered[high]
