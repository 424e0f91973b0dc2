"""A job that lost what it had: the connection to its store, or the bytes that it sent."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts import (
    Cluster,
    Collective,
    Job,
    JobEnd,
    Measurements,
    Node,
    PairTime,
    RankState,
    Run,
    Silence,
    WrongResult,
    replace,
)
from ncclcheck.reports.judgement.findings import Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules

_WORDS = (
    "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has "
    "failed. See inner exception for details."
)


def _rank(number: int, state: str = "R", **changes: object) -> RankState:
    made = RankState(
        rank=number, node=f"h{number // 2 + 1}", pid=200 + number, last_step="import torch", proc_state=state
    )
    return replace(made, **changes)


RANKS = [_rank(0), _rank(1), _rank(2, "gone"), _rank(3, "gone", first=True), _rank(4), _rank(5)]
ENDS = [JobEnd(node="h1", exit=None), JobEnd(node="h2", exit=None, detail=_WORDS), JobEnd(node="h3", exit=None)]


def _judged(code: str, run: Run | None = None, measurements: Measurements | None = None) -> Verdict:
    cluster = Cluster(
        command="bench",
        nodes=[Node(name=f"h{number}") for number in (1, 2, 3)],
        job=Job(ranks=6, nodes_asked=3, nodes_answered=3),
        run=run or Run(),
        measurements=measurements or Measurements(),
    )
    return judge(cluster, [rule for rule in all_rules() if rule.code == code])[0]


def _run(ranks: list[RankState] = RANKS, ends: list[JobEnd] = ENDS, **changes: object) -> Run:
    return replace(Run(ranks=ranks, ends=ends, started_job=True, stopped_by="dead rank"), **changes)


def test_a_torchrun_that_lost_the_store_ended_its_ranks() -> None:
    (finding,) = _judged("RUN002", _run()).findings
    assert (finding.state.value, finding.where.node, finding.where.peer) == ("fail", "h2", "h1")
    assert "broke in mid-run" in finding.what
    assert "sys.exit" not in finding.what


@pytest.mark.parametrize("phase", ["start", "world"])
def test_a_rank_that_ended_by_itself_is_still_named(phase: str) -> None:
    ranks = [replace(state, phase=phase) for state in RANKS]
    ends = [JobEnd(node=f"h{number}", exit=None) for number in (1, 2, 3)]
    (finding,) = _judged("RUN002" if phase == "start" else "RUN003", _run(ranks, ends)).findings
    assert finding.where.rank == 3
    assert "it ended by itself" in finding.what


def test_a_rank_with_an_error_of_its_own_is_still_named() -> None:
    ranks = [*RANKS[:3], _rank(3, "gone", error="ValueError: no", exit=1, first=True), *RANKS[4:]]
    ends = [ENDS[0], JobEnd(node="h2", exit=1, detail="ValueError: no"), ENDS[2]]
    assert _judged("RUN002", _run(ranks, ends)).findings[0].where.rank == 3


@pytest.mark.parametrize(
    "run",
    [
        _run([_rank(0, "gone"), *RANKS[1:]]),  # node 0 itself was lost
        _run(ends=[JobEnd(node="h1", exit=1, detail="x"), *ENDS[1:]]),
        _run(silent=[Silence(node="h1", last_step="", since_s=9.0)]),
    ],
)
def test_where_node_0_was_lost_its_store_is_no_wonder(run: Run) -> None:
    assert not any("torchrun's store" in finding.what for finding in _judged("RUN002", run).findings)


def _pair(a: str, b: str, there: int | None, back: int | None) -> PairTime:
    return PairTime(a=a, b=b, bytes=2**22, a_to_b_changed=there, b_to_a_changed=back)


_WRONG = [
    WrongResult(op="broadcast", bytes=2**20, dtype="float32", rank=rank, node=f"h{rank // 2 + 1}", wrong=1,
                offset=9, expected_bits="0x1", got_bits="0x3", pattern="bit")
    for rank in (0, 3)
]  # fmt: skip
_ROW = Collective(op="broadcast", bytes=2**20, dtype="float32", ranks=6, nodes=3, correct=False)


@pytest.mark.parametrize(
    ("pairs", "nodes", "says"),
    [
        (
            [("h1", "h2", 3, 1), ("h2", "h3", 0, 4), ("h1", "h3", 0, 0)],
            ("h2", None),
            "h2 exchanges with each of 2",
        ),
        ([("h1", "h2", 3, 0), ("h2", "h3", 0, 4), ("h1", "h3", 0, 0)], ("h2", None), "h2 receives from each of 2"),
        (
            [("h1", "h2", 0, 1), ("h2", "h3", 4, 0), ("h1", "h3", 0, 0)],
            ("h2", None),
            "h2 sends to each of 2 nodes",
        ),
        ([("h1", "h2", 3, 1), ("h2", "h3", 0, 0), ("h1", "h3", 0, 0)], ("h1", "h2"), "between h1 and h2"),
    ],
)
def test_exchanges_say_who_changes_data(
    pairs: list[tuple[str, str, int, int]], nodes: tuple[str, str | None], says: str
) -> None:
    measured = Measurements(collectives=[_ROW], wrong=_WRONG, pairs=[_pair(*pair) for pair in pairs])
    (finding,) = _judged("BEN001", measurements=measured).findings
    assert (finding.where.node, finding.where.peer) == nodes
    assert says in finding.what
    assert any("broadcast" in evidence.value for evidence in finding.evidence)


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [("h1", "h2", None, None)],
        [("h1", "h2", 0, 0), ("h2", "h3", 0, 0), ("h1", "h3", 0, 0)],
        [("h1", "h2", 1, 0), ("h2", "h3", 1, 0), ("h1", "h3", 1, 0)],
    ],
)
def test_else_ranks_say_what_they_saw(pairs: list[tuple[str, str, int | None, int | None]]) -> None:
    measured = Measurements(collectives=[_ROW], wrong=_WRONG, pairs=[_pair(*pair) for pair in pairs])
    findings = _judged("BEN001", measurements=measured).findings
    assert [finding.where.rank for finding in findings] == [0, 3]
