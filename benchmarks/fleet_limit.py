"""How often the week of a slow fall can be told at all, by series of one node as benchmarks/fleet.py makes them.

    python benchmarks/fleet_limit.py [--trials 100]

ours: drift.placed. told: a search that is told the noise and both levels, and not how long the fall takes; nobody
knows more. all: one that is told how long it takes too. Right is a week on either side, as in benchmarks/fleet.py.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from itertools import accumulate
from math import exp, log, pi, sqrt
from pathlib import Path

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ncclcheck.fleet import drift

DAYS, NOISE, WEEK = 365, 0.02, 7
ANY = (0, 7, 14, 21, 28, 35, 42, 56, 84)  # days that a fall may take


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    trials = parser.parse_args().trials
    rows = []
    for change in (-0.04, -0.06, -0.10, -0.20):
        for takes in (28, 42):
            right = [0, 0, 0]
            for trial in range(trials):
                day, made = series(random.Random(f"{change} {takes} {trial}"), change, takes)
                ours = drift.placed(made)
                begins = (
                    ours.begun if ours else -DAYS,
                    fortnight(made, change, ANY),
                    fortnight(made, change, (takes,)),
                )
                for at, begun in enumerate(begins):
                    right[at] += abs(begun - day) <= WEEK
            rows.append((f"{change:.0%}", takes, *(f"{100 * count / trials:.0f} %" for count in right)))
    print(tabulate(rows, ["change", "days", "ours", "told", "all"], disable_numparse=True))


def series(chance: random.Random, change: float, takes: int) -> tuple[int, list[float]]:
    """The day of the fall, and the year."""
    day = chance.randrange(DAYS // 8, DAYS - DAYS // 8)
    outlier = (chance.uniform(0.1, 0.3) if chance.random() < 0.01 else 0.0 for _ in range(DAYS))
    gone = (min(1.0, max(0, at - day + 1) / takes) for at in range(DAYS))
    return day, [change * g + chance.gauss(0, NOISE) - o for g, o in zip(gone, outlier, strict=True)]


def fortnight(made: Sequence[float], change: float, durations: Sequence[int]) -> int:
    """The middle of the fortnight in which it most likely began: a fall at once is as likely as all slow ones."""
    before = [0.0, *accumulate(map(_likely, made))]
    after = [0.0, *accumulate(_likely(value - change) for value in made)]
    logs: dict[int, list[float]] = {}
    for takes in durations:
        weight = 0.0 if takes else log(max(1, len(durations) - 1))
        for begun in range(drift.EDGE, DAYS - drift.EDGE + 1):
            end = min(DAYS, begun + takes)
            falling = sum(
                _likely(made[at] - change * (at - begun + 1) / takes) for at in range(begun, end) if takes
            )
            logs.setdefault(begun, []).append(weight + before[begun] + falling + after[DAYS] - after[end])
    most = max(map(max, logs.values()))
    share = {begun: sum(exp(chance - most) for chance in listed) for begun, listed in logs.items()}
    return max(share, key=lambda day: sum(share.get(day + off, 0.0) for off in range(-WEEK, WEEK + 1)))


def _likely(off: float) -> float:
    """The logarithm of the density: Gaussian, and one in a hundred is 10 to 30 % too low."""
    wide = NOISE * sqrt(2 * pi) / 0.2 if -0.32 < off < -0.08 else 1e-9
    return log(0.99 * exp(-off * off / (2 * NOISE**2)) + 0.01 * wide)


if __name__ == "__main__":
    main()
