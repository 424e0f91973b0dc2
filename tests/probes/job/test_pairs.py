"""Real gloo ranks measure each other two by two, also while one of them does not answer."""

from __future__ import annotations

import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from ncclcheck.probes.facts import PairTime
from ncclcheck.probes.job.context import PairPlan
from ncclcheck.probes.job.peers.pairs import ranks_of
from tests.jobs.pairs_job import WORLD, Case, Outcome

ROOT = Path(__file__).parents[3]
PLAN = PairPlan(bytes=2**20, limit_s=5.0, budget_s=60.0)
SHORT = PairPlan(bytes=2**20, limit_s=2.0, budget_s=60.0)

FOUR = [[("n0", "n1"), ("n2", "n3")], [("n0", "n2"), ("n3", "n1")]]
CASES = [
    Case(name="two nodes", plan=PLAN, rounds=[[("n1", "n0")], [("n0", "n1")]], node_of=("n0", "n0", "n1", "n1")),
    Case(name="three", plan=PLAN, rounds=[[("n1", "n2")], [("n0", "n2")]], node_of=("n0", "n1", "n2", "n2")),
    Case(name="four", plan=PLAN, rounds=FOUR),
    Case(name="no time", plan=PairPlan(budget_s=0.0), rounds=FOUR),
    Case(name="late", plan=SHORT, rounds=FOUR, late_rank=3, sleep_s=2.7),
    Case(name="mute", plan=SHORT, rounds=[*FOUR, FOUR[0]], mute_rank=3, sleep_s=2.6),
]


@cache
def outcomes() -> list[dict[str, Outcome]]:
    """What each rank handed over, by case; the whole job runs once."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with TemporaryDirectory() as folder:
        Path(folder, "cases.json").write_bytes(msgspec.json.encode(CASES))
        command = [sys.executable, "-m", "tests.jobs.pairs_job"]
        ranks = [
            subprocess.Popen([*command, str(rank), port, folder], stderr=subprocess.PIPE, cwd=ROOT)
            for rank in range(WORLD)
        ]
        try:
            errors = [rank.communicate(timeout=100)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0] * WORLD, b"\n".join(errors).decode()
        texts = [Path(folder, f"{rank}.json").read_bytes() for rank in range(WORLD)]
    return [{o.name: o for o in msgspec.json.decode(text, type=list[Outcome])} for text in texts]


def pairs(name: str) -> dict[tuple[int, str, str], PairTime]:
    """All that was emitted, by round and nodes; nothing twice."""
    times = [pair for rank in outcomes() for pair in rank[name].pairs]
    by_pair = {(pair.round, pair.a, pair.b): pair for pair in times}
    assert len(by_pair) == len(times)
    return by_pair


@pytest.mark.parametrize("name", ["two nodes", "three", "four"])
def test_each_pair_has_both_directions_and_a_latency(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    wanted = {(number, *sorted(pair)) for number, round_ in enumerate(case.rounds) for pair in round_}
    assert set(pairs(name)) == wanted
    for pair in pairs(name).values():
        assert (pair.state, pair.reason, pair.rail) == ("ok", "", 0)
        assert pair.a_to_b_gb_s
        assert pair.b_to_a_gb_s
        assert pair.latency_us
        assert 2**16 <= pair.bytes <= PLAN.bytes


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_the_world_still_works(name: str) -> None:
    assert [rank[name].sum for rank in outcomes()] == [WORLD] * WORLD


def test_no_round_is_started_when_the_time_is_used_up() -> None:
    assert not pairs("no time")


def test_a_rank_that_comes_too_late_costs_only_its_own_pair() -> None:
    timed = pairs("late")
    assert timed[0, "n2", "n3"].state == "timed_out"
    assert timed[0, "n2", "n3"].reason == "rank 3 on n3 did not come to it within 2 s"
    assert {pair.state for key, pair in timed.items() if key != (0, "n2", "n3")} == {"ok"}
    assert len(timed) == 4


def test_a_direction_without_data_is_named_and_the_other_pairs_go_on() -> None:
    timed = pairs("mute")
    for key in ((0, "n2", "n3"), (1, "n1", "n3"), (2, "n2", "n3")):
        pair = timed[key]
        assert (pair.state, pair.b_to_a_gb_s) == ("timed_out", None)
        assert pair.a_to_b_gb_s
        assert f"{pair.a} waited for data of n3" in pair.reason
    assert {timed[key].state for key in ((0, "n0", "n1"), (1, "n0", "n2"), (2, "n0", "n1"))} == {"ok"}


def test_notes_are_taken_down() -> None:
    assert {rank["four"].keys for rank in outcomes()} == {0}


def test_ranks_belong_to_nodes_in_their_order() -> None:
    assert ranks_of(["b", "b", "a", "a"]) == {"b": [0, 1], "a": [2, 3]}
