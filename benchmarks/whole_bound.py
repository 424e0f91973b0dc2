"""How many rounds of groups any search needs to name members that fail only together, whatever it does.

    python benchmarks/whole_bound.py

A round's groups are disjoint, so at most one of them holds all k members, and what the round says is which one, or
none. Be L(n, r) the most sets of k among n nodes that r rounds can tell apart. If a group of m nodes fails, all
members are among these m, and at most L(m, r - 1) sets are told apart there; if none fails, at most L(n, r - 1):

    L(n, r) <= L(n, r - 1) + the greatest sum of L(m, r - 1) over disjoint groups of m nodes,

with L(n, 0) = 1 and L(n, r) <= C(n, k). The least r at which this reaches C(n, k) is a bound that no search beats
in its worst case. Three rounds are added that tell nothing of three members or more: all twos and the whole, with
which the search finds that there is something to search, and the answer once more alone.

One group a round: such a round has two outcomes, so r of them tell at most 2^r sets apart. Told how many: a search
that knows from the start how many members there are, and asks for nothing else: the last of them first, by groups
of the first c nodes, then the one before it beside it, and so on, c halving the sets that are left.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.whole import SIZES

TOLD_NOTHING = 3  # rounds
_TRIALS = 2000


def least_rounds(nodes: int, members: int) -> int:
    """The bound, without the rounds that tell nothing."""
    most = [math.comb(many, members) for many in range(nodes + 1)]
    known, rounds = [min(1, count) for count in most], 0
    while known[nodes] < most[nodes]:
        rounds += 1
        known = [min(a, b + c) for a, b, c in zip(most, known, _best_sums(known), strict=True)]
    return rounds


def _best_sums(known: list[int]) -> list[int]:
    """For each number of nodes the greatest sum over disjoint groups of them."""
    best: list[int] = []
    for many, whole in enumerate(known):
        best.append(max([whole, *(best[part] + best[many - part] for part in range(1, many // 2 + 1))]))
    return best


def one_group_a_round(nodes: int, members: int) -> int:
    """The bound where a round tries one group, without the rounds that tell nothing."""
    return (math.comb(nodes, members) - 1).bit_length()


def rounds_when_told(nodes: int, members: Sequence[int]) -> int:
    """How many rounds the search that knows the number of members takes for these, numbered from 1."""
    rounds, most = 0, nodes
    for left in range(len(members), 0, -1):
        member, sound = sorted(members)[left - 1], left - 1
        while most - sound > 1:
            middle = round(((sound**left + most**left) / 2) ** (1 / left))
            middle = min(max(middle, sound + 1), most - 1)
            sound, most = (sound, middle) if member <= middle else (middle, most)
            rounds += 1
        most = member - 1
    return rounds


def main() -> None:
    """Print the table."""
    rows = []
    for nodes in (nodes for nodes, _ in SIZES if nodes > 8):
        for members in (3, 4):
            chance = random.Random(f"{nodes} {members}")
            counts = [rounds_when_told(nodes, chance.sample(range(1, nodes + 1), members)) for _ in range(_TRIALS)]
            taken = (least_rounds(nodes, members), one_group_a_round(nodes, members), fmean(counts), max(counts))
            rows.append([nodes, members, *(rounds + TOLD_NOTHING for rounds in taken), 3 * math.log2(nodes)])
    head = ["nodes", "members", "at least", "one group a round", "told how many", "most", "3 log2 N"]
    print(tabulate(rows, head, floatfmt=".1f"))


if __name__ == "__main__":
    main()
