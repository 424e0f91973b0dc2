"""Wrong results of real gloo ranks: their pattern and source are told, in the rows and in the soak."""

from __future__ import annotations

from functools import cache

import pytest

from ncclcheck.probes.facts import (
    Cluster,
    Collective,
    Job,
    Measurements,
    Node,
    RankState,
    Run,
    Soak,
    WrongResult,
    replace,
)
from ncclcheck.probes.job.context import CollectivePlan, Injection, Op, Row, SoakPlan
from ncclcheck.reports.culprit import culprits
from ncclcheck.reports.judgement.findings import Finding, State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.jobs.collective_job import Case, Outcome, outcomes_of
from tests.jobs.planted import FROM, TO

WORLD = 3
SOAKED: tuple[Op, ...] = ("broadcast", "all_reduce", "all_to_all", "broadcast_object_list", "barrier")


def case(name: str, *ops: Op, soak: float = 0.0, defect: str = "", injected: tuple[Injection, ...] = ()) -> Case:
    rows = [Row(op=op, bytes=49_152 if op != "barrier" else 0) for op in ops]
    return Case(
        name=name,
        plan=CollectivePlan(rows=rows, budget_s=20, least_iterations=2, most_iterations=3),
        soak=SoakPlan(seconds=soak) if soak else None,
        defect=defect,
        injected=[*injected],
    )


CASES = [
    case("missing", "all_reduce", defect="missing"),
    case("doubled", "all_reduce", defect="doubled"),
    case("changed", "all_reduce", defect="changed"),
    case("same bit", "broadcast", defect="same bit"),
    case("chunk", "all_gather", defect="chunk"),
    case("piece", "all_gather", defect="piece"),
    case("stuck", "broadcast", defect="stuck", soak=0.5),
    case("sound", *SOAKED, soak=1.0),
    case("injected", *SOAKED, soak=0.5, injected=(Injection(kind="corrupt", rank=1, op="all_to_all"),)),
]


@cache
def outcomes() -> list[dict[str, Outcome]]:
    """One job over all cases."""
    return outcomes_of(CASES, WORLD)


def wrong(name: str) -> list[WrongResult]:
    """What all ranks handed over in a case."""
    return [result for rank in outcomes() for result in rank[name].wrong]


@pytest.mark.parametrize("how", ["missing", "doubled", "changed"])
def test_the_contributor_of_a_wrong_reduction_is_named(how: str) -> None:
    results = wrong(how)
    assert [outcome.rank for outcome in results] == [0, 1, 2]
    for result in results:
        assert (result.source_rank, result.contribution, result.pattern) == (1, how, "chunk")
        assert (result.offset, result.last, result.iteration, result.soak) == (FROM, TO - 1, 1, False)


@pytest.mark.parametrize(
    ("name", "first", "last", "source"),
    [("same bit", FROM, FROM + (TO - FROM - 1) // 7 * 7, 0), ("chunk", FROM, TO - 1, 0), ("piece", 0, 4095, 0)],
)
def test_the_pattern_and_the_sender_are_told(name: str, first: int, last: int, source: int) -> None:
    (result,) = wrong(name)
    assert (result.rank, result.pattern, result.offset, result.last, result.source_rank) == (
        1,
        name,
        first,
        last,
        source,
    )


def test_a_result_that_is_stuck_shows_in_the_soak_only() -> None:
    assert all(row.correct for row in outcomes()[0]["stuck"].rows)
    results = wrong("stuck")
    assert {(result.rank, result.op, result.soak, result.pattern) for result in results} == {
        (1, "broadcast", True, "piece")
    }
    assert [result.iteration for result in results[:3]] == [1, 2, 3]
    last = outcomes()[0]["stuck"].soaks[-1]
    assert last.wrong == last.results > len(results) == 20


def test_a_soak_checks_all_operations_round_after_round() -> None:
    first = outcomes()[0]["sound"]
    last = first.soaks[-1]
    assert (last.asked_s, last.wrong) == (1.0, 0)
    assert last.results // 4 in (last.rounds, last.rounds + 1)  # of a barrier there is no result
    assert last.rounds > 1
    assert 1.0 <= last.seconds < 5
    assert not any(rank["sound"].soaks for rank in outcomes()[1:])
    for op in SOAKED[:-1]:
        assert any(step.startswith("soak") and op in step for step in first.steps)


def test_iterations_of_the_soak_count_for_the_growth_of_memory() -> None:
    for rank in outcomes():
        memory = rank["sound"].memory
        assert memory
        rows = sum(row.iterations for row in outcomes()[0]["sound"].rows)
        assert memory.iterations > rows


def test_an_injected_bit_is_the_one_that_is_found() -> None:
    results = wrong("injected")
    assert {(result.rank, result.op, result.pattern, result.wrong) for result in results} == {
        (1, "all_to_all", "bit", 1)
    }
    assert {result.soak for result in results} == {False, True}
    assert {int(result.got_bits, 16) ^ int(result.expected_bits, 16) for result in results} == {16}


GOOD = Collective(op="all_reduce", bytes=8192, dtype="float32", nodes=2, ranks=4, correct=True)
BAD = {"op": "all_reduce", "bytes": 8192, "dtype": "float32", "rank": 3, "node": "b", "wrong": 1, "offset": 9}
BITS = {"expected_bits": "0x40000000", "got_bits": "0x40000010"}


def verdict(*results: WrongResult, soak: Soak | None = None) -> Verdict:
    return judge(cluster_of(*results, soak=soak), [rule for rule in all_rules() if rule.code == "BEN001"])[0]


def cluster_of(*result: WrongResult, soak: Soak | None = None) -> Cluster:
    ranks = [RankState(rank=rank, node="ab"[rank // 2], phase="done") for rank in range(4)]
    return Cluster(
        command="bench",
        nodes=[Node(name="a"), Node(name="b")],
        job=Job(ranks=4),
        run=Run(ranks=ranks, started_job=True),
        measurements=Measurements(
            collectives=[replace(GOOD, correct=not result, state="fail" if result else "ok")],
            wrong=[*result],
            soak=soak,
        ),
    )


def finding_of(**more: object) -> Finding:
    (finding,) = verdict(WrongResult(**{**BAD, **BITS, **more})).findings  # type: ignore[arg-type]
    assert finding.state is State.FAIL
    return finding


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "1 wrong elements, the first at offset 9: bits 0x40000010, expected 0x40000000"),
        ({"pattern": "bit", "iteration": 7}, "iteration 7: one bit of one element (bit 4) is wrong, at offset 9"),
        ({"pattern": "same bit", "wrong": 5, "last": 90}, "5 wrong elements up to 90, always in bit 4"),
        ({"pattern": "element", "iteration": 3, "soak": True}, "round 3 of the soak: one element is wrong"),
        (
            {"pattern": "chunk", "offset": 1024, "last": 2047, "wrong": 1020},
            "a chunk from element 1024 to 2047 (4 KiB, aligned to 4 KiB)",
        ),
        ({"pattern": "chunk", "last": 20, "wrong": 12}, "(48 B, not aligned)"),
        ({"pattern": "piece", "source_rank": 0, "wrong": 9}, "all of the piece from rank 0"),
        ({"pattern": "scattered", "wrong": 9, "last": 1999}, "9 wrong elements scattered up to 1999"),
        ({"pattern": "piece", "got_bits": "0xa5a5a5a5"}, "nothing was ever written there"),
        ({"source_rank": 0}, "it comes from rank 0"),
    ],
    ids=str,
)
def test_the_rule_says_it_in_words(more: dict[str, object], words: str) -> None:
    assert words in finding_of(**more).what
    assert finding_of(**more).where.node == "b"


def test_the_contributor_is_the_place_to_look_at() -> None:
    finding = finding_of(source_rank=1, contribution="missing", pattern="chunk", last=99)
    assert (finding.where.node, finding.where.rank) == ("a", 1)
    assert "the contribution of rank 1 is missing" in finding.what
    assert "on rank 3" in finding.what


def test_rounds_of_a_soak_are_one_finding() -> None:
    rounds = [WrongResult(**{**BAD, **BITS}, soak=True, iteration=n, pattern="bit") for n in (4, 9)]  # type: ignore[arg-type]
    (finding,) = verdict(*rounds).findings
    assert "round 4 of the soak, and at least 1 times more" in finding.what


def bad(**more: object) -> WrongResult:
    return WrongResult(**{**BAD, **BITS, **more})  # type: ignore[arg-type]


def test_sizes_of_one_operation_are_one_finding() -> None:
    judged = verdict(*(bad(bytes=2**n) for n in (10, 20, 13, 14, 16)), bad(op="broadcast"))
    assert len(judged.findings) == 2
    of_sizes = next(finding for finding in judged.findings if "all_reduce" in finding.what)
    assert "of 1 KiB" in of_sizes.what
    assert "at least 4 times more (also of 8 KiB, 16 KiB, 64 KiB and 1 more)" in of_sizes.what
    assert [e.source for e in of_sizes.evidence[:2]] == ["result of rank 3, 1 KiB", "result of rank 3, 1 MiB"]


def test_what_all_ranks_saw_of_one_contribution_is_one_finding() -> None:
    (finding,) = verdict(*(bad(rank=rank, source_rank=1, contribution="missing") for rank in range(4))).findings
    assert "on ranks 0-3" in finding.what
    assert (finding.where.node, finding.where.rank) == ("a", 1)


@pytest.mark.parametrize(
    ("results", "names", "confidence"),
    [
        ([bad(rank=rank, source_rank=1, contribution="doubled") for rank in (0, 3)], ["a/rank 1"], 0.97),
        ([bad(rank=rank, source_rank=2) for rank in (0, 1)], ["b/rank 2"], 0.8),
        ([bad(bytes=4), bad(bytes=8)], ["b/rank 3"], 0.6),
        ([bad(source_rank=0)], ["b/rank 3"], 0.5),
        ([bad(rank=0), bad(rank=1)], None, 0.0),
        ([bad(rank=77)], None, 0.0),
    ],
    ids=["contribution", "sender", "alone", "on its way", "everywhere", "a rank that there is not"],
)
def test_who_changed_data_is_the_culprit(
    results: list[WrongResult], names: list[str] | None, confidence: float
) -> None:
    named = culprits(cluster_of(*results))
    assert [(culprit.names, culprit.confidence, culprit.explains) for culprit in named] == (
        [(names, confidence, ["BEN001"])] if names else []
    )
    assert all(culprit.why.startswith("wrong results of all_reduce") for culprit in named)


def test_who_only_saw_wrong_results_is_not_blamed_where_others_saw_some_without_it() -> None:
    """A port that changes data in transit: each row shows it at other ranks."""
    own = bad(op="all_gather", rank=0, node="a", source_rank=1, iteration=18)
    elsewhere = [bad(rank=rank, node="b", iteration=17) for rank in (2, 3)]
    assert [culprit.names for culprit in culprits(cluster_of(own))] == [["a/rank 0"]]
    assert culprits(cluster_of(own, *elsewhere)) == []


def test_a_soak_without_a_fault_is_told_and_an_empty_one_is_unknown() -> None:
    good = Soak(asked_s=60, seconds=60.2, rounds=100, results=1200, wrong=0, bytes=2**40)
    judged = verdict(soak=good)
    assert judged.state is State.OK
    assert "1200 results in 100 rounds and 60 s, 1 TiB in all; none wrong" in judged.findings[0].what
    assert verdict(soak=Soak(asked_s=60, seconds=0, rounds=0, results=0, wrong=0, bytes=0)).state is State.UNKNOWN


def test_where_nothing_could_be_measured_nothing_is_known() -> None:
    why = {"all_reduce": "gloo has no avg", "reduce": "gloo has no avg", "barrier": "the time budget was used up"}
    rows = [replace(GOOD, op=op, correct=None, state="skipped", reason=reason) for op, reason in why.items()]
    cluster = replace(cluster_of(), measurements=Measurements(collectives=rows))
    judged = judge(cluster, [rule for rule in all_rules() if rule.code == "BEN001"])[0]
    assert judged.state is State.UNKNOWN
    assert "all_reduce, reduce: gloo has no avg; barrier: the time budget" in judged.findings[0].what
