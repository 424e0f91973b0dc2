"""A job in which nothing moves says so on stderr, with the rank that the others wait for."""

from __future__ import annotations

import re

import pytest

from ncclcheck.base import wire
from ncclcheck.base.progress import Progress
from ncclcheck.probes.facts import Measurements, RankState, replace
from ncclcheck.run.gather import Gathered
from ncclcheck.run.stall import Stall
from tests.conftest import Command

STEP = "all_reduce 1 MiB"


class Case:
    """A job of three ranks, its clock in our hands."""

    def __init__(self, *, tty: bool = False) -> None:
        self.now = 0.0
        self.gathered, progress = Gathered([]), Progress()
        progress.tty = tty
        self.stall = Stall(self.gathered, progress, lambda: self.now)

    def hear(self, ticks: int, since: float = 0.0, rank: int = 0) -> None:
        """What an agent says of a rank that it looked at."""
        state = RankState(rank=rank, node="a", phase="world", last_step=STEP, ticks=ticks, since_s=since)
        self.gathered.ranks[rank] = state
        self.stall.heard(wire.RankReport(state=state))

    def wait(self, seconds: int) -> None:
        """Ask every second, as the session does."""
        for _ in range(seconds):
            self.now += 1
            self.stall.tell()


def test_a_line_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    case = Case()
    for rank in range(3):
        case.hear(5 - (rank == 2), rank=rank)
    case.wait(29)
    assert capsys.readouterr().err == ""
    case.hear(4, since=30.0, rank=2)  # the agent looked again, and nothing had moved
    case.wait(32)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["no progress for 30 s", "no progress for 60 s"]
    assert "(3 ranks are not done)" in lines[0]


def test_a_terminal_shows_it_sooner_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    case = Case(tty=True)
    case.wait(21)
    output = capsys.readouterr().err
    assert output.count("no rank has started yet") == 2
    assert "\n" not in output


def test_the_rank_that_did_not_come_is_the_one_that_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    case = Case()
    for rank in range(3):
        case.hear(5 - (rank == 2), since=29.0, rank=rank)
    case.wait(30)
    assert f"rank 2 on a in {STEP}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "news",
    [wire.StepNotice(text="next", rank=1), wire.RankResult(part=Measurements()),
     wire.RankReport(state=RankState(rank=0, node="a", phase="world", last_step=STEP, ticks=8))],
    ids=["step", "result", "tick"],
)  # fmt: skip
def test_anything_new_begins_the_wait_anew(news: wire.FromAgent, capsys: pytest.CaptureFixture[str]) -> None:
    case = Case()
    case.hear(7)
    case.wait(29)
    case.stall.heard(news)
    case.stall.heard(wire.AgentBeat())
    case.wait(29)
    assert capsys.readouterr().err == ""


def test_what_is_done_is_waited_for_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    case = Case()
    for rank in range(2):
        case.hear(5, rank=rank)
    case.gathered.ranks[0] = replace(case.gathered.ranks[0], phase="done")
    case.wait(30)
    output = capsys.readouterr().err
    assert "rank 1 on a" in output
    assert "not done" not in output


@pytest.mark.nightly
def test_a_rank_that_hangs_is_told_while_it_does(ncclcheck: Command) -> None:
    arguments = ("--nodes", "2", "--nproc-per-node", "1", "--ops", "all_reduce", "--sizes", "1K")
    ran = ncclcheck("bench", *arguments, "--inject", "hang=1@2", "--deadline", "48", "-o", "short", seconds=70)
    assert re.search(r"no progress for 30 s: rank 1 on sim[01] in all_reduce 1 KiB", ran.err), ran.err
    assert re.search(r"^Culprit: rank sim[01]/rank 1 \(confidence 0.50\): pid ", ran.out, re.MULTILINE), ran.out
