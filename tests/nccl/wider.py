"""Known cases over a third host, whose ranks come first: other numbers, other neighbours, the same truth."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.nccl.case import Case
from tests.nccl.job import Rank

_FAILS = "FAKECUDA_FAIL"  # calls that fail: of the one rank that the case means
_MARK = re.compile(r"mark:r\d+")


def widened(case: Case) -> Case:
    """The case with two sound ranks of h3 before all others, and a sound neighbour for each rank that is alone."""
    steps, shared = case.ranks[0].steps, _of_all(case.ranks)
    ranks = [Rank("h3", device, steps, env=shared) for device in (0, 1)]
    for host in dict.fromkeys(rank.host for rank in case.ranks):
        own = [rank for rank in case.ranks if rank.host == host]
        if len(own) == 1:
            ranks.append(replace(own[0], device=1, env=_without_faults(own[0].env)))
        ranks += own
    numbered = [replace(rank, steps=_MARK.sub(f"mark:r{n}", rank.steps)) for n, rank in enumerate(ranks)]
    cards = {**case.cards, "h3": "mlx5_0"} if case.cards else case.cards
    return replace(case, ranks=numbered, cards=cards)


def _of_all(ranks: Sequence[Rank]) -> dict[str, str]:
    """What is set for every rank alike."""
    first, *others = (rank.env for rank in ranks)
    shared = {name: value for name, value in first.items() if all(env.get(name) == value for env in others)}
    return _without_faults(shared)


def _without_faults(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name != _FAILS}
