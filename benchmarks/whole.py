"""Whether a fault that no pair shows is told: planted in clusters of which every pair is sound.

    python benchmarks/whole.py [--trials 200] [--seed 11] [--noise 0.02]

Half of the faults let nothing through, half leave 25 to 60 % of the bandwidth; 0.5 % of the batches are disturbed.
Right: the smallest size that fails, all members and nobody else, or both groups of nodes (see whole.is_right).
Targets: right in 95 %, within 3 log2 N rounds; docs/limits.md says why four members, and three so far, take more.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import fmean

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.simulation.fabric import Weather
from benchmarks.simulation.whole import KINDS, Whole, ask, is_right

SIZES = (
    (4, 2),
    (8, 4),
    (33, 11),
    (50, 7),
    (64, 16),
    (100, 12),
    (256, 16),
    (1000, 24),
    (1024, 32),
)  # nodes, and of those behind one switch


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--noise", type=float, default=0.02)
    parser.add_argument("--nodes", type=int, help="only this size")
    given = parser.parse_args()
    print(f"{given.trials} trials a row, seed {given.seed}, noise {given.noise}")
    rows = []
    for nodes, group in SIZES:
        for kind in KINDS:
            fits = given.nodes in (None, nodes) and int(kind[0] if kind[0].isdigit() else 0) < nodes
            if fits and not (kind in ("joined", "at once") and nodes < 8):
                rows.append(_row(kind, nodes, group, given))
    print(tabulate(rows, ["nodes", "fault", "right", "rounds", "most", "3 log2 N", "s", "else"],
                   disable_numparse=True))  # fmt: skip


def _row(kind: str, nodes: int, group: int, given: argparse.Namespace) -> tuple[str, ...]:
    weather, right, rounds, wrong = Weather(noise=given.noise), 0, [], Counter[str]()
    begun = time.process_time()
    for trial in range(given.trials):
        whole = Whole(kind, nodes, group, weather, random.Random(f"{given.seed} {kind} {nodes} {trial}"))  # type: ignore[arg-type]
        answer = ask(whole)
        right += is_right(whole, answer)
        rounds.append(answer.rounds)
        if not is_right(whole, answer):
            wrong[answer.kind] += 1
    spent = (time.process_time() - begun) / given.trials
    others = ", ".join(f"{kind} {count}" for kind, count in wrong.most_common())
    return (str(nodes), kind, f"{100 * right / given.trials:.1f} %", f"{fmean(rounds):.1f}", str(max(rounds)),
            f"{3 * math.log2(nodes):.0f}", f"{spent:.2f}", others)  # fmt: skip


if __name__ == "__main__":
    main()
