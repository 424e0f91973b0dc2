"""Faults that no pair shows, planted where every pair is sound: who is named, and when nobody is."""

from __future__ import annotations

import random

import pytest

from benchmarks.simulation.fabric import Weather
from benchmarks.simulation.whole import Kind, Whole, ask, is_right
from ncclcheck.probes.facts import Cluster, GroupTime, Job, Measurements, PairTime, RankState, Run, replace
from ncclcheck.reports.culprit import culprits
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.scale.search import answered, next_groups
from ncclcheck.reports.scale.suspicion import pairs_are_sound, whole_has_failed, whole_is_bad

RULE = [rule for rule in all_rules() if rule.code == "BEN019"]


def whole(kind: Kind, nodes: int = 64, group: int = 16, seed: int = 0, **weather: float) -> Whole:
    return Whole(kind, nodes, group, Weather(**weather), random.Random(f"tests {kind} {nodes} {seed}"))


def measured(whole_job: Whole) -> list[GroupTime]:
    """All rounds that the search asks for."""
    done: list[GroupTime] = []
    while groups := next_groups(whole_job.names, done):
        assert len({name for group in groups for name in group}) == sum(map(len, groups)), "groups are disjoint"
        done += whole_job.measure(groups, len({each.round for each in done}))
    return done


def cluster(done: list[GroupTime], *, simulated: bool = False) -> Cluster:
    job = Job(backend="nccl", simulated=simulated)
    return Cluster(command="bench", nodes=[], job=job, measurements=Measurements(groups=done))


@pytest.mark.parametrize("kind", ["healthy", "gradual", "size", "2 members", "3 members", "joined", "at once"])
@pytest.mark.parametrize("seed", range(4))
def test_the_answer_is_what_was_planted(kind: Kind, seed: int) -> None:
    whole_job = whole(kind, seed=seed)
    assert is_right(whole_job, ask(whole_job))


@pytest.mark.parametrize(
    ("kind", "nodes"), [("size", 3), *((kind, n) for kind in ("size", "2 members") for n in (4, 5, 7, 8))]
)
def test_few_nodes(kind: Kind, nodes: int) -> None:
    for seed in range(6):
        whole_job = whole(kind, nodes, seed=seed)
        assert is_right(whole_job, ask(whole_job))


def test_a_number_of_nodes_is_named_with_what_was_tried() -> None:
    whole_job = whole("size")
    (named,) = culprits(cluster(measured(whole_job)))
    assert named.kind == "scale"
    assert named.names == [f"{whole_job.size} nodes or more"]
    assert f"from {whole_job.size} nodes on, whichever they are" in named.why
    (verdict,) = judge(cluster(measured(whole_job)), RULE)
    assert verdict.state is State.FAIL
    assert any(
        f"--nodes {whole_job.size - 1}" in line for r in verdict.findings[0].remedies for line in r.commands
    )


def test_members_are_named() -> None:
    whole_job = whole("2 members")
    (named,) = culprits(cluster(measured(whole_job)))
    assert sorted(named.names) == sorted(whole_job.members)
    assert "are all in it" in named.why


@pytest.mark.parametrize("kind", ["healthy", "gradual"])
def test_where_the_whole_is_sound_nobody_is_named(kind: Kind) -> None:
    done = measured(whole(kind))
    assert not culprits(cluster(done))
    (verdict,) = judge(cluster(done), RULE)
    assert verdict.state in (State.NOTE, State.OK)


def test_a_search_without_an_end_is_unknown() -> None:
    done = measured(whole("size"))
    short = [time for time in done if time.round < 4]
    assert not culprits(cluster(short))
    (verdict,) = judge(cluster(short), RULE)
    assert verdict.state is State.UNKNOWN


def test_simulated_nodes_are_one_machine() -> None:
    done = measured(whole("size"))
    assert not culprits(cluster(done, simulated=True))
    assert judge(cluster(done, simulated=True), RULE)[0].state is State.SKIPPED


def test_files_of_others_end_the_search() -> None:
    done = [GroupTime(nodes=["a", "b"], ranks=2, round=3), GroupTime(nodes=[], ranks=0, round=0)]
    assert answered(["a", "b", "c"], done).kind == "unsure"
    assert next_groups(["a", "b"], []) == []
    assert not culprits(cluster(done))


PAIR = PairTime(a="a", b="b", bytes=2**22, a_to_b_gb_s=10.0, b_to_a_gb_s=10.0)


def test_when_groups_are_worth_while() -> None:
    assert pairs_are_sound([PAIR])
    assert not pairs_are_sound([])
    assert not pairs_are_sound([PAIR, replace(PAIR, state="timed_out")])
    assert not whole_is_bad([], [PAIR], "nccl")


def rank(number: int, **state: object) -> RankState:
    given = {"phase": "start", "last_step": "init_process_group (gloo)", **state}
    return RankState(rank=number, node=f"n{number}", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("last", "failed"),
    [
        ({}, True),
        ({"error": "RuntimeError: Gloo connectFullMesh failed with timed out connecting"}, True),
        ({"proc_state": "T"}, False),
        ({"exit": -9, "proc_state": "gone"}, False),
        ({"error": "ValueError: loss", "users": True}, False),
        ({"error": "KeyError: x", "defect": "worker.py:1"}, False),
    ],
)
def test_a_whole_that_failed_has_nobody_to_blame(last: dict[str, object], failed: bool) -> None:
    ranks = [rank(0), rank(1), rank(2, **last)]
    job = Cluster(command="bench", nodes=[], job=Job(ranks=3), run=Run(ranks=ranks, started_job=True))
    assert whole_has_failed(job) is failed
