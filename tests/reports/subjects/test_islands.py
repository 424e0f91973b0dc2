"""A thin trunk between two racks: every node is fast with its neighbour and slow with the others."""

from __future__ import annotations

import itertools

import pytest

from ncclcheck.probes.facts import PairTime
from ncclcheck.reports.culprit.pairs.islands import islands


def _pairs(rates: dict[tuple[str, str], float], names: str = "abcd") -> list[PairTime]:
    return [
        PairTime(a=a, b=b, bytes=4 * 2**20, a_to_b_gb_s=rates.get((a, b), 0.003),
                 b_to_a_gb_s=rates.get((a, b), 0.003), latency_us=60.0)
        for a, b in itertools.combinations(names, 2)
    ]  # fmt: skip


def test_two_racks_with_a_thin_trunk() -> None:
    split = islands(_pairs({("a", "b"): 0.25, ("c", "d"): 2.0}))
    assert split is not None
    assert split.groups == [["a", "b"], ["c", "d"]]
    assert split.across == pytest.approx(0.003, rel=0.01)
    assert split.within == pytest.approx(0.25, rel=0.01)


@pytest.mark.parametrize(
    "rates",
    [
        dict.fromkeys(itertools.combinations("abcd", 2), 1.0),  # all alike
        {("a", "b"): 0.02, ("c", "d"): 2.0},  # no such gap
        {("a", "b"): 2.0, ("b", "c"): 2.0, ("a", "c"): 2.0},  # one node alone: a node is to blame
        {("a", "b"): 2.0, ("c", "d"): 2.0, ("b", "c"): 2.0},  # a fast way across
    ],
)
def test_what_is_no_pair_of_racks(rates: dict[tuple[str, str], float]) -> None:
    assert islands(_pairs(rates)) is None


def test_a_small_exchange_is_not_slow_for_its_latency() -> None:
    small = [
        PairTime(a=a, b=b, bytes=65536, a_to_b_gb_s=0.4, b_to_a_gb_s=0.4, latency_us=70.0)
        for a, b in (("a", "c"), ("b", "d"), ("a", "d"), ("b", "c"))
    ]
    large = _pairs({("a", "b"): 4.5, ("c", "d"): 4.5})
    assert islands([*small, *(time for time in large if (time.a, time.b) in (("a", "b"), ("c", "d")))]) is None
