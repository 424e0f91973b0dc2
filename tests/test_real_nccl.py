"""NCCL's own library on a CUDA of ours: starts, moves data over its own transports, and says what it says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import Lab
from tests.nccl import NEWEST, OLDEST, Job, Rank, need

SUMS = "init all_reduce:5000 sync:20 first:1,2,999 destroy"
CARDS = {"h1": "mlx5_0; mlx5_1", "h2": "mlx5_0; mlx5_1"}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two hosts with eth0 alone."""
    need(OLDEST, NEWEST)
    with Lab(hosts=2, mgmt=False) as lab:
        yield lab


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_ranks_of_two_hosts_sum_over_nccls_own_sockets(lab: Lab, version: str) -> None:
    ended = Job(lab, [Rank("h1", steps=SUMS), Rank("h2", steps=SUMS)], version=version).run(seconds=40)
    assert ended.codes == [0, 0], ended.log
    assert "via NET/Socket/0" in ended.log
    for rank in ended.ranks:
        values = rank.step("values")
        assert values
        assert values["values"] == [3.0, 6.0, 2997.0]  # i from rank 0 and 2 i from rank 1


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_ranks_of_two_hosts_sum_over_nccls_own_verbs(lab: Lab, version: str) -> None:
    ranks = [Rank("h1", steps=SUMS), Rank("h2", steps=SUMS)]
    ended = Job(lab, ranks, version=version, cards=CARDS).run(seconds=40)
    assert ended.codes == [0, 0], ended.log
    assert "via NET/IB/" in ended.log
    for rank in ended.ranks:
        values = rank.step("values")
        assert values
        assert values["values"] == [3.0, 6.0, 2997.0]
