"""How many rounds of groups any search needs to name members that fail only together, whatever it does.

    python benchmarks/whole_bound.py

A round's groups are disjoint, so at most one of them holds all k members, and what the round says is which one, or
none. Be L(n, r) the most sets of k among n nodes that r rounds can tell apart. If a group of m nodes fails, all
members are among these m, and at most L(m, r - 1) sets are told apart there; if none fails, at most L(n, r - 1):

    L(n, r) <= L(n, r - 1) + the greatest sum of L(m, r - 1) over disjoint groups of m nodes,

with L(n, 0) = 1 and L(n, r) <= C(n, k). The least r at which this reaches C(n, k) is a bound that no search beats
in its worst case. Three rounds are added that tell nothing of three members or more: all twos and the whole, with
which the search finds that there is something to search, and the answer once more alone.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.whole import SIZES

TOLD_NOTHING = 3  # rounds


def least_rounds(nodes: int, members: int) -> int:
    """The bound, without the rounds that tell nothing."""
    most = [math.comb(many, members) for many in range(nodes + 1)]
    told, rounds = [min(1, one) for one in most], 0
    while told[nodes] < most[nodes]:
        rounds += 1
        told = [min(a, b + c) for a, b, c in zip(most, told, _best_sums(told), strict=True)]
    return rounds


def _best_sums(told: list[int]) -> list[int]:
    """For each number of nodes the greatest sum over disjoint groups of them."""
    best: list[int] = []
    for many, whole in enumerate(told):
        best.append(max([whole, *(best[part] + best[many - part] for part in range(1, many // 2 + 1))]))
    return best


def main() -> None:
    """Print the table."""
    rows = [
        [nodes, *(least_rounds(nodes, members) + TOLD_NOTHING for members in (3, 4)), 3 * math.log2(nodes)]
        for nodes, _ in SIZES
        if nodes > 8
    ]
    print(tabulate(rows, ["nodes", "3 members", "4 members", "3 log2 N"], floatfmt=".1f"))


if __name__ == "__main__":
    main()
