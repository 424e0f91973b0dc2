"""When a job is over: as soon as all its ranks are done, where torchrun's own end is not part of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from ncclcheck.base import wire
from ncclcheck.launch.agents import AgentRecord, Closed
from ncclcheck.probes.facts import RankState
from ncclcheck.run.gather import Gathered


class _Link:
    """Two nodes of which nothing is asked."""

    nodes: Mapping[int, str] = {0: "a", 1: "b"}

    def send(self, node: int | None, order: wire.FromLauncher) -> None: ...

    def describe(self, node: int) -> Closed:
        return Closed(node, f"node {node}")

    def close(self, seconds: float) -> None: ...


def _gathered(world: int, done: Collection[int], others: Collection[int] = (), **state: object) -> Gathered:
    gathered = Gathered([_Link()])
    gathered.begin_job([0, 1], world=world)
    for rank in (*done, *others):
        report = RankState(rank=rank, node="ab"[rank // 2], phase="done" if rank in done else "world", **state)  # type: ignore[arg-type]
        gathered.take(AgentRecord(rank // 2, wire.RankReport(state=report)))
    return gathered


@pytest.mark.parametrize(
    ("world", "done", "others", "over"),
    [
        (4, range(4), (), True),
        (4, range(3), (3,), False),
        (4, range(3), (), False),
        (0, range(4), (), False),
    ],
    ids=["all are done", "one still works", "one has not come", "its own end is waited for"],
)
def test_a_job_is_done_when_all_its_ranks_are(
    world: int, done: Collection[int], others: Collection[int], over: bool
) -> None:
    assert _gathered(world, done, others).job_done is over


def test_a_rank_that_ended_with_an_error_is_not_done() -> None:
    assert not _gathered(4, range(3), (3,), error="RuntimeError: no").job_done


def test_the_next_job_begins_anew() -> None:
    gathered = _gathered(4, range(4))
    gathered.begin_job([0, 1], world=4)
    assert not gathered.job_done
