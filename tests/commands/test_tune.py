"""`tune`: what is tried, how long it is said to take, and wrong usage."""

from __future__ import annotations

import pytest

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Node
from ncclcheck.run.plan import tune_plan
from ncclcheck.run.plan.bench_plan import JobShape
from ncclcheck.run.plan.trial_plan import TriedSetting
from ncclcheck.run.plan.tune_plan import TuneOptions
from tests.conftest import Command
from tests.helpers.clusters import LO, nic, node

GLOO = JobShape("gloo", 1)
NCCL = JobShape("nccl", 8)


def two() -> list[Node]:
    return [node(name, LO, nic("eth0", address)) for name, address in (("a", "10.0.0.1/24"), ("b", "10.0.0.2/24"))]


def tried(wanted: TuneOptions, shape: JobShape) -> list[str]:
    candidates = tune_plan.candidates(wanted, shape, two(), simulated=False)
    return [f"{candidate.variable}={candidate.value}" for candidate in candidates]


def test_nothing_is_tried_without_a_fall_back() -> None:
    for setting in tried(TuneOptions(), NCCL):
        name, _, value = setting.partition("=")
        assert name != "NCCL_ALGO" or "ring" in value


def test_gloo_has_threads_alone() -> None:
    assert {setting.partition("=")[0] for setting in tried(TuneOptions(), GLOO)} == {"OMP_NUM_THREADS"}


def test_the_users_own_settings_take_the_place_of_the_usual_ones() -> None:
    assert tried(TuneOptions(tries=(TriedSetting("NCCL_BUFFSIZE", "8388608"),)), NCCL) == ["NCCL_BUFFSIZE=8388608"]


@pytest.mark.parametrize("given", ["NCCL_ALGO=tree", "NCCL_ALGO=allreduce:nvls", "NCCL_ALGO=^ring", "X=1"])
def test_what_cannot_be_tried(given: str) -> None:
    with pytest.raises(UsageError):
        tune_plan.tries([given])


@pytest.mark.parametrize("given", ["NCCL_ALGO=ring", "NCCL_ALGO=allreduce:tree,ring", "NCCL_ALGO=^nvls"])
def test_what_can(given: str) -> None:
    assert str(tune_plan.tries([given])[0]) == given


def test_more_candidates_are_said_to_take_longer() -> None:
    few, many = (tune_plan.stated_seconds(TuneOptions(), count) for count in (1, 6))
    assert few < many
    assert tune_plan.default_deadline(TuneOptions()) >= many


def test_the_jobs_own_sizes_are_measured() -> None:
    rows = (("all_reduce", 2**20), ("all_gather", 2**22))
    plan = tune_plan.job(TuneOptions(rows=rows), GLOO, two(), simulated=False)
    assert [(row.op, row.bytes) for row in plan.collectives.rows] == [*rows]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--quick", "--full"), "give one of them"),
        (("--try", "NCCL_ALGO=tree"), "ring"),
        (("--job-files", "/nonexistent"), "--job-files"),
        (("--job-files", "/dev/null", "--sizes", "1M"), "give no --ops and --sizes"),
        (("--nodes", "2", "--try", "NCCL_ALGO=ring", "--backend", "gloo"), "gloo"),
    ],
)
def test_wrong_usage(ncclcheck: Command, arguments: tuple[str, ...], says: str) -> None:
    ran = ncclcheck("tune", *arguments)
    assert ran.code == 2
    assert says in ran.err
