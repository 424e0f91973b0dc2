"""Real gloo ranks measure small plans: every operation, number format and reduction, and planted faults."""

from __future__ import annotations

import math
from functools import cache
from typing import get_args

import msgspec
import pytest

from ncclcheck.probes.facts import Collective
from ncclcheck.probes.job.context import CollectivePlan, Dtype, Op, ReduceOp, Row
from ncclcheck.probes.job.operations import OPERATIONS
from ncclcheck.probes.job.timing import is_tight, median_interval, summary
from tests.jobs.collective_job import Case, Outcome, outcomes_of

ALL_OPS: tuple[Op, ...] = get_args(Op)
REDUCING: tuple[Op, ...] = ("all_reduce", "reduce", "reduce_scatter")
WHOLE = ("band", "bor", "bxor")
MIB = 2**20


def plan(rows: list[Row], **named: object) -> CollectivePlan:
    quick = {"budget_s": 30.0, "least_iterations": 2, "most_iterations": 3}
    return msgspec.convert(quick | {"rows": msgspec.to_builtins(rows)} | named, CollectivePlan)


def rows(ops: tuple[Op, ...], *sizes: int) -> list[Row]:
    return [Row(op=op, bytes=size) for op in ops for size in sizes]


CASES = [
    Case(name="ops", plan=plan(rows(ALL_OPS, 1, 10_000))),
    *(Case(name=name, plan=plan(rows(ALL_OPS, 999), dtype=name)) for name in get_args(Dtype)),
    *(
        Case(name=f"{name} {dtype}", plan=plan(rows(REDUCING, 4096), reduce_op=name, dtype=dtype))
        for name in get_args(ReduceOp)
        for dtype in ("float32", "uint8")
    ),
    Case(name="corrupt", plan=plan(rows(("all_reduce",), 8192)), corrupt_rank=1),
    Case(name="corrupt later", plan=plan(rows(("all_reduce",), 8192)), corrupt_rank=0, corrupt_call=3),
    Case(name="memory", plan=plan(rows(("all_gather", "broadcast"), 4096, 64 * MIB), memory=MIB)),
    Case(name="budget", plan=plan(rows(("all_reduce",), 4096, 2**36, 8192), budget_s=5.0, memory=2**40)),
    Case(name="no budget", plan=plan(rows(("all_reduce",), 4096), budget_s=0.0)),
    Case(name="old torch", plan=plan(rows(("all_gather",), 4096)), gather_error="no support for _allgather_base"),
    Case(name="broken", plan=plan(rows(("all_gather",), 4096)), gather_error="Connection closed by peer"),
]


@cache
def outcomes(world: int) -> list[dict[str, Outcome]]:
    """What each rank of a world handed over, by case; the whole job runs once."""
    return outcomes_of(CASES, world)


def row_of(name: str, world: int, op: str) -> Collective:
    """The last row of an operation in a case."""
    return [row for row in outcomes(world)[0][name].rows if row.op == op][-1]


@pytest.fixture(params=[2, pytest.param(3, marks=pytest.mark.nightly)], ids="{0} ranks".format)
def world(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_the_table_has_every_operation() -> None:
    assert set(OPERATIONS) == set(ALL_OPS)


def test_every_operation_is_measured_and_right(world: int) -> None:
    first = outcomes(world)[0]["ops"]
    assert [(row.op, row.state) for row in first.rows] == [(op, "ok") for op in ALL_OPS for _ in range(2)]
    for row in first.rows:
        assert row.correct is (None if row.op == "barrier" else True)
        assert (row.nodes, row.ranks, row.iterations) == (world, world, 3)
        assert row.time_us
        assert 0 < row.time_us.min <= row.time_us.p50 <= row.time_us.p95 <= row.time_us.p99 <= row.time_us.max
    assert all(not other["ops"].rows for other in outcomes(world)[1:])
    assert all(other["ops"].ticks == first.ticks for other in outcomes(world))


@pytest.mark.parametrize("op", ALL_OPS)
def test_each_step_is_announced_on_every_rank(op: str, world: int) -> None:
    for rank in outcomes(world):
        assert any(step.startswith(op) for step in rank["ops"].steps)


FACTORS = {
    # op: (factor with 2 ranks, with 3 ranks), by hand from nccl-tests
    "broadcast": (1.0, 1.0),
    "all_reduce": (1.0, 4 / 3),
    "all_gather": (0.5, 2 / 3),
    "reduce_scatter": (0.5, 2 / 3),
    "all_to_all": (0.5, 2 / 3),
    "reduce": (1.0, 1.0),
    "gather": (0.5, 2 / 3),
    "scatter": (0.5, 2 / 3),
    "sendrecv": (1.0, 1.0),
}


@pytest.mark.parametrize("op", FACTORS)
def test_bandwidths_are_those_of_nccl_tests(op: str, world: int) -> None:
    row = row_of("ops", world, op)
    assert row.time_us
    assert row.algbw_gb_s
    assert row.busbw_gb_s
    assert math.isclose(row.algbw_gb_s, row.bytes / (row.time_us.p50 * 1e-6) / 1e9)
    assert math.isclose(row.busbw_gb_s / row.algbw_gb_s, FACTORS[op][world - 2])


def test_where_no_bus_bandwidth_is_defined_there_is_none(world: int) -> None:
    barrier, objects = row_of("ops", world, "barrier"), row_of("ops", world, "broadcast_object_list")
    assert (barrier.bytes, barrier.algbw_gb_s, barrier.busbw_gb_s) == (0, None, None)
    assert (objects.bytes, objects.dtype, objects.busbw_gb_s) == (10_000, "object", None)
    assert objects.algbw_gb_s


def test_sizes_are_whole_elements_for_every_rank() -> None:
    sizes = {
        row.op: [r.bytes for r in outcomes(3)[0]["ops"].rows if r.op == row.op]
        for row in outcomes(3)[0]["ops"].rows
    }
    assert sizes["all_reduce"] == [4, 10_000]
    assert sizes["all_gather"] == sizes["all_to_all"] == sizes["scatter"] == [12, 9_996]
    assert row_of("float64", 3, "reduce_scatter").bytes == 984


@pytest.mark.parametrize("dtype", get_args(Dtype))
def test_every_number_format_is_right(dtype: str, world: int) -> None:
    for row in outcomes(world)[0][dtype].rows:
        assert (row.op, row.state, row.correct) == (row.op, "ok", None if row.op == "barrier" else True)
        assert row.dtype in (dtype, "", "object")


@pytest.mark.parametrize("op", REDUCING)
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("reduce_op", get_args(ReduceOp))
def test_a_reduction_is_right_or_skipped_with_its_reason(reduce_op: str, dtype: str, op: str, world: int) -> None:
    row = row_of(f"{reduce_op} {dtype}", world, op)
    if row.state == "skipped":
        assert reduce_op in ("avg", "premul_sum", *WHOLE)
        assert reduce_op in row.reason
        assert row.time_us is None
    else:
        assert (row.state, row.correct) == ("ok", True)
    if reduce_op in WHOLE and dtype != "uint8":
        assert "whole numbers" in row.reason
    if reduce_op == "premul_sum":
        assert "gloo" in row.reason or "whole numbers" in row.reason


@pytest.mark.parametrize(("case", "culprit"), [("corrupt", 1), ("corrupt later", 0)])
def test_a_flipped_bit_is_reported_with_rank_place_and_bits(case: str, culprit: int, world: int) -> None:
    row = row_of(case, world, "all_reduce")
    assert (row.state, row.correct) == ("fail", False)
    wrong = [result for rank in outcomes(world) for result in rank[case].wrong]
    assert [(result.rank, result.node, result.offset, result.wrong) for result in wrong] == [
        (culprit, f"sim{culprit}", 5, 1)
    ]
    assert int(wrong[0].expected_bits, 16) ^ int(wrong[0].got_bits, 16) == 8


def test_a_row_that_needs_too_much_memory_says_both_numbers(world: int) -> None:
    small, large = (row_of("memory", world, op) for op in ("all_gather", "broadcast"))
    assert outcomes(world)[0]["memory"].rows[0].state == "ok"
    assert small.state == large.state == "skipped"
    assert large.reason == "needs 64 MiB on a rank, 1 MiB may be used"


def test_a_size_that_does_not_fit_the_budget_is_not_started(world: int) -> None:
    outcome = outcomes(world)[0]["budget"]
    assert [row.state for row in outcome.rows] == ["ok", "skipped", "ok"]
    assert "would take about" in outcome.rows[1].reason
    assert row_of("no budget", world, "all_reduce").reason == "the time budget was used up before it"


def test_an_older_form_is_used_where_the_new_one_is_missing(world: int) -> None:
    assert (row_of("old torch", world, "all_gather").state) == "ok"


def test_a_broken_connection_is_no_missing_operation(world: int) -> None:
    broken = outcomes(world)[0]["broken"]
    assert broken.rows == []
    assert broken.error == "Connection closed by peer"


def test_one_rank_has_no_bandwidth() -> None:
    for row in outcomes(1)[0]["ops"].rows:
        assert (row.algbw_gb_s, row.busbw_gb_s) == (None, None)
        assert row.state == ("skipped" if row.op == "sendrecv" else "ok")
    assert "one rank" in row_of("ops", 1, "all_reduce").reason


@pytest.mark.parametrize(("count", "k"), [(5, 0), (6, 1), (9, 2), (20, 6), (100, 40)])
def test_the_interval_of_the_median_is_that_of_the_tables(count: int, k: int) -> None:
    ordered = [float(value) for value in range(1, count + 1)]
    assert median_interval(ordered) == ((k, count + 1 - k) if k else None)


def test_a_median_is_certain_when_its_interval_is_narrow() -> None:
    assert is_tight([1.0, 1.01, 1.02, 0.99, 1.0, 1.0])
    assert not is_tight([1.0, 1.01, 1.02, 0.99, 1.0, 1.2])
    assert not is_tight([1.0] * 5)


def test_a_summary_is_in_microseconds() -> None:
    times = summary([second / 1e6 for second in range(1, 101)])
    measured = [round(value, 6) for value in msgspec.structs.astuple(times)[:6]]
    assert measured == [50.5, 95, 99, 1, 100, 50.5]
