"""Ranks that stand still for good: how a rank knows it of itself, when the job ends, and who is named."""

from __future__ import annotations

import pytest

from ncclcheck.node.ranks.stuck import Still
from ncclcheck.probes.facts import Cluster, Job, Node, RankState, Run
from ncclcheck.reports.culprit import culprits
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.subjects.failures import deadlock

WAITS, OWN = ["all_reduce", "train.py:7 in step"], ["data.py:3 in read"]


class World:
    """A clock, what a rank spends of its cores, and where it stands."""

    def __init__(self, stack: list[str]) -> None:
        self.now, self.spent, self.stack = 0.0, 0.0, stack
        self.still = Still(lambda: self.stack, lambda: self.spent, lambda: self.now)

    def after(self, seconds: float, *, busy: float = 0.0) -> bool:
        """Whether it is stuck when so much time has passed, of which so much on a core."""
        for _ in range(int(seconds * 2)):
            self.now, self.spent = self.now + 0.5, self.spent + busy / seconds / 2
            self.still.look()
        return self.still.stuck


@pytest.mark.parametrize(
    ("stack", "seconds", "busy", "stuck"),
    [
        (WAITS, 5.0, 0.0, False),
        (WAITS, 10.0, 0.1, True),
        (WAITS, 10.0, 9.0, False),
        (["backward()"], 10.0, 0.0, True),
        (["__next__()"], 30.0, 0.0, False),
        (OWN, 30.0, 0.0, False),
        (OWN, 70.0, 0.0, True),
        (OWN, 70.0, 60.0, False),
    ],
)
def test_a_rank_is_stuck_where_it_stands_idle(stack: list[str], seconds: float, busy: float, stuck: bool) -> None:
    assert World(stack).after(seconds, busy=busy) is stuck


def test_a_rank_that_goes_on_elsewhere_is_not_stuck() -> None:
    world = World(WAITS)
    world.after(6.0)
    world.stack = ["all_reduce", "train.py:9 in step"]
    assert not world.after(6.0)
    assert world.after(4.0)


def of(*stacks: list[str]) -> Run:
    ranks = [
        RankState(rank=rank, node=f"n{rank}", pid=rank + 1, phase="world", last_step="training: x", since_s=16.0,
                  proc_state="S", stack=stack, stuck=True)
        for rank, stack in enumerate(stacks)
    ]  # fmt: skip
    return Run(ranks=ranks, started_job=True, stopped_by="deadlock")


BARRIER, DDP = ["barrier", "train.py:5 in log"], ["backward()"]
GATHERS = ["get_model_state_dict", "train.py:4 in save, under if dist.get_rank() == 0"]
WITHIN = ["gather_object", "m.py:9 in mean", "train.py:4 in log, under if not (rank != 0)"]


@pytest.mark.parametrize(
    ("stacks", "odd", "fix"),
    [
        ([BARRIER, DDP], [0], "Call barrier at train.py:5 in log on every rank, or on none"),
        ([DDP, DDP, BARRIER], [2], "Call barrier at train.py:5 in log on every rank"),
        ([BARRIER, BARRIER, DDP], [2], "enter the collective at train.py:5 in log as the others do"),
        ([DDP, OWN], [1], "See data.py:3 in read"),
        ([GATHERS, BARRIER], [0], "Let all ranks call get_model_state_dict at train.py:4 in save: only what uses"),
        (
            [BARRIER, WITHIN],
            [1],
            "call gather_object at m.py:9 in mean, called at train.py:4 in log: only what uses",
        ),
        ([DDP, DDP], [], "the same collectives in the same order"),
        ([BARRIER, WAITS], [], "the same collectives in the same order"),
    ],
)
def test_who_parted_is_named(stacks: list[list[str]], odd: list[int], fix: str) -> None:
    run = of(*stacks)
    assert [rank.rank for rank in deadlock.parted(run.ranks)] == odd
    finding = _finding(run)
    assert finding.state is State.FAIL
    assert fix in finding.remedies[0].text
    assert all(" from ".join(stack[:2]) in finding.what for stack in stacks)
    nodes = [Node(name=rank.node) for rank in run.ranks]
    named = culprits(Cluster(command="smoke", nodes=nodes, job=Job(ranks=len(stacks)), run=run))
    assert [culprit.names for culprit in named] == [[f"n{rank}/rank {rank}"] for rank in odd]


def _finding(run: Run) -> Finding:
    nodes = [Node(name=rank.node) for rank in run.ranks]
    cluster = Cluster(command="smoke", nodes=nodes, job=Job(ranks=len(nodes)), run=run)
    (verdict,) = judge(cluster, [rule for rule in all_rules() if rule.code == "RUN003"])
    (finding,) = verdict.findings
    return finding
