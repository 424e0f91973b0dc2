"""Who keeps all others waiting is the culprit, not only a finding."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts import Cluster, Job, JobEnd, Node, RankState, Run, Silence, replace
from ncclcheck.reports.culprit import culprits
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.rules.run.ranks import every_rank_reached_every_collective

STEP = "all_reduce 1 MiB"
WAITING = [
    RankState(rank=rank, node="ab"[rank // 2], pid=100 + rank, phase="world", last_step=STEP, since_s=9, ticks=7)
    for rank in range(4)
]


def run(changed: dict[int, dict[str, object]], **more: object) -> list[tuple[str, list[str], float, list[str]]]:
    ranks = [replace(rank, **changed.get(rank.rank, {})) for rank in WAITING]
    cluster = Cluster(
        command="bench",
        nodes=[Node(name="a"), Node(name="b")],
        job=Job(ranks=4),
        run=Run(ranks=ranks, started_job=True, **more),  # type: ignore[arg-type]
    )
    return [(culprit.kind, culprit.names, culprit.confidence, culprit.explains) for culprit in culprits(cluster)]


STOPPED, KILLED, STARTING = {"proc_state": "T"}, {"proc_state": "gone", "exit": -9}, {"phase": "start"}
ALL_STARTING = dict.fromkeys(range(4), STARTING)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({1: STOPPED}, [("rank", ["a/rank 1"], 0.97, ["RUN003"])]),
        ({3: KILLED, 0: {"proc_state": "gone", "exit": 1}}, [("rank", ["b/rank 3"], 0.97, ["RUN003"])]),
        ({2: STOPPED, 3: STOPPED}, [("node", ["b"], 0.97, ["RUN003"])]),
        ({2: {"proc_state": "gone", "first": True}}, [("rank", ["b/rank 2"], 0.9, ["RUN003"])]),
        ({2: {"proc_state": "gone", "first": True, "error": "RuntimeError: reset"}}, []),
        ({0: {"ticks": 6}}, [("rank", ["a/rank 0"], 0.5, ["RUN003"])]),
        ({**ALL_STARTING, 1: {**STARTING, **KILLED}}, [("rank", ["a/rank 1"], 0.97, ["RUN002"])]),
    ],
    ids=[
        "nobody",
        "stopped",
        "killed",
        "a whole node",
        "dead first",
        "an error",
        "did not come",
        "before joining",
    ],
)
def test_a_rank_that_is_lost_is_the_culprit(
    changed: dict[int, dict[str, object]], expected: list[tuple[str, list[str], float, list[str]]]
) -> None:
    assert run(changed) == expected


def test_a_torchrun_that_was_killed_and_a_silent_node_come_before_their_ranks() -> None:
    ends = [JobEnd(node="b", exit=-9)]
    assert run({2: KILLED, 3: KILLED}, ends=ends) == [("node", ["b"], 0.97, ["RUN003"])]
    silent = [Silence(node="b", last_step="", since_s=9)]
    assert run({0: {"ticks": 6}}, silent=silent) == []


def test_no_more_time_is_asked_for_where_only_the_end_hangs() -> None:
    """All collectives had ended: neither more time nor a smaller plan helps."""
    ranks = [replace(rank, last_step="destroy_process_group") for rank in WAITING]
    cluster = Cluster(
        command="bench",
        nodes=[Node(name="a"), Node(name="b")],
        job=Job(ranks=4),
        run=Run(ranks=ranks, started_job=True, stopped_by="deadline"),
    )
    (finding,) = every_rank_reached_every_collective(cluster)
    assert finding.state is State.UNKNOWN
    assert "destroy_process_group" in finding.what
    words = " ".join(line for remedy in finding.remedies for line in (remedy.text, *remedy.commands))
    assert "py-spy dump" in words
    assert "--deadline" not in words
    assert "--sizes" not in words
