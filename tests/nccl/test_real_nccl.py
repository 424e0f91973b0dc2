"""NCCL's own library on a CUDA of ours: it starts, moves data over its own transports, and says what it says."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.helpers.logs import judged, raised
from tests.lab import Lab
from tests.nccl import NEWEST, OLDEST, Ended, Job, Rank, need
from tests.nccl.case import CARDS, SUMS, kill_second, last, marked, pair
from tests.nccl.cases import CASES

BY_NAME = {case.name: case for case in CASES}
SUMS_SEEN = "init all_reduce:5000 sync:20 first:1,2,999 destroy"
SUM = [3.0, 6.0, 2997.0]  # i from rank 0 and 2 i from rank 1


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two hosts with eth0 alone."""
    need(OLDEST, NEWEST)
    with Lab(hosts=2, mgmt=False) as lab:
        yield lab


def _ran(lab: Lab, name: str, version: str = NEWEST) -> Ended:
    return BY_NAME[name].run(lab, version)


def _values(ended: Ended) -> list[object]:
    return [(rank.step("values") or {}).get("values") for rank in ended.ranks]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_ranks_of_two_hosts_sum_over_nccls_own_sockets(lab: Lab, version: str) -> None:
    ended = Job(lab, pair(SUMS_SEEN), version=version).run(seconds=40)
    assert ended.codes == [0, 0], ended.log
    assert "via NET/Socket/0" in ended.log
    assert _values(ended) == [SUM, SUM]
    assert raised(ended.log) == {}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_ranks_of_two_hosts_sum_over_nccls_own_verbs(lab: Lab, version: str) -> None:
    ended = Job(lab, pair(SUMS_SEEN), version=version, cards=CARDS).run(seconds=40)
    assert ended.codes == [0, 0], ended.log
    assert "via NET/IB/" in ended.log
    assert _values(ended) == [SUM, SUM]


def test_a_missing_rank_leaves_a_silent_log_and_is_named(lab: Lab) -> None:
    ended = _ran(lab, "missing_rank")
    assert ended.codes == [None, None, None]
    assert "NCCL WARN" not in ended.log
    assert [*raised(ended.log)] == ["LOG002"]
    assert "not in these files: rank 3" in judged(ended.log)["LOG002"].findings[0].what


def test_dropped_packets_leave_a_silent_log_and_no_cause_is_made_up(lab: Lab) -> None:
    ended = _ran(lab, "dropped")
    assert ended.codes == [None, None]
    assert "NCCL WARN" not in ended.log
    assert {*raised(ended.log)} <= {"LOG002"}


def test_two_ranks_on_one_gpu_are_named(lab: Lab) -> None:
    ended = _ran(lab, "same_gpu")
    assert "Duplicate GPU detected" in ended.log
    assert "LOG057" in raised(ended.log)


def test_ranks_with_different_versions_do_not_meet(lab: Lab) -> None:
    ranks = [Rank("h1", steps=SUMS, version=NEWEST), Rank("h2", steps=SUMS, version=OLDEST)]
    ended = Job(lab, ranks).run(seconds=20)
    assert 0 not in ended.codes
    assert "Message truncated" in ended.log
    assert "LOG018" in raised(ended.log), ended.log


def test_a_call_that_fails_is_nccls_own_warning(lab: Lab) -> None:
    ended = _ran(lab, "ecc")
    assert "uncorrectable ECC error encountered" in ended.log
    assert "LOG067" in raised(ended.log)


def test_ras_tells_who_is_gone(lab: Lab) -> None:
    def ask(job: Job) -> None:
        kill_second(job)
        time.sleep(1)
        job.ask("h1")

    ranks = last(marked([Rank("h1"), Rank("h2")], "sleep:30"), "init all_reduce sync:20 mark:r1 sleep:30")
    answer = Job(lab, ranks).run(seconds=0, during=ask).ras[0]
    assert "NCCL version " + NEWEST in answer.text
    assert "10.77.0.22" in answer.text or "h2" in answer.text, answer.text
    assert "DEAD" in answer.text or "INCOMPLETE" in answer.text, answer.text
