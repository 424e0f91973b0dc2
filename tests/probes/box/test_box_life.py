"""When a job is taken for stalled: no sign of life in any channel, for 60 s or three times the longest silence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ncclcheck.probes.box import watcher
from ncclcheck.probes.box.processes import Process
from ncclcheck.probes.box.read import folders
from ncclcheck.probes.box.watcher import Life, Watcher

_TICKS = os.sysconf("SC_CLK_TCK")


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """As time.monotonic."""
        return self.now

    def time(self) -> float:
        """As time.time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """As time.sleep."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of the watcher."""
    made = Clock()
    monkeypatch.setattr(watcher, "time", made)
    return made


def _rank(cpu: float = 0.0, moved: int = 0) -> Process:
    return Process(7, "1", 1, 0.0, rank=0, cpu=int(cpu * _TICKS), moved=moved)


def _silence(life: Life, clock: Clock, seconds: int, **each: float) -> float:
    """What it says after so many seconds in each of which the rank does so much."""
    silent = 0.0
    for second in range(1, seconds + 1):
        clock.now += 1
        rank = _rank(cpu=100 + second * each.get("cpu", 0.0), moved=int(10**6 + second * each.get("moved", 0)))
        silent = life.silent([rank], int(second * each.get("printed", 0)))
    return silent


@pytest.mark.parametrize(
    ("each", "lives"),
    [
        ({}, False),
        ({"cpu": 0.02, "moved": 2000}, False),  # a rank that waits in gloo, and beats of a store
        ({"cpu": 0.3}, True),
        ({"moved": 50_000}, True),
        ({"printed": 1}, True),
    ],
)
def test_each_channel_alone_is_a_sign_of_life(clock: Clock, each: dict[str, float], lives: bool) -> None:
    life = Life()
    _silence(life, clock, 5, cpu=0.5)
    silent = _silence(life, clock, 90, **each)
    assert (silent < 2) == lives
    assert lives or silent >= 88


@pytest.mark.parametrize(("states", "lives"), [("R", True), ("RRS", False), ("S", False)])
def test_a_process_that_lacks_a_core_is_starved_and_not_stalled(clock: Clock, states: str, lives: bool) -> None:
    """torchrun that ends on a loaded machine; one that polls is runnable now and then."""
    life = Life()
    for second in range(90):
        clock.now += 1
        process = _rank(cpu=100, moved=10**6)
        process.state = states[second % len(states)]
        silent = life.silent([process], 0)
    assert (silent < 2) == lives


@pytest.fixture
def watched(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A watcher of one rank that does nothing, which looks by itself only, and kills nobody."""
    monkeypatch.setattr(watcher, "time", clock)
    made = Watcher(str(tmp_path), os.getpid(), "report", 60.0)
    done: list[str] = []
    monkeypatch.setattr(made, "look", lambda: done.append("look"))

    def ask(*_: Any, wait: bool) -> list[int]:
        done.append("stacks" if wait else "")
        return []

    monkeypatch.setattr(made, "stacks", SimpleNamespace(ask=ask, ask_workers=lambda _: None, written=lambda _: []))
    monkeypatch.setattr(made, "dump", lambda: done.append("dump"))
    monkeypatch.setattr(made, "kill", lambda: done.append("kill"))
    monkeypatch.setattr(folders, "wait_for_stalls", lambda *_: None)
    made.jobs.alive = {7: _rank()}
    made.life = Life()
    return made, done


def test_a_pipe_is_looked_for_before_the_signal_takes_its_reader_out_of_open(
    watched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = watched
    waits, noted = ["wait_for_partner"], list[tuple[str, str]]()

    def ask(*_: Any) -> list[int]:
        waits[0] = ""
        return [7]

    monkeypatch.setattr(made.stacks, "ask", ask)
    monkeypatch.setattr(made, "peers", lambda: None)
    monkeypatch.setattr(made, "wchan", lambda _: waits[0])
    monkeypatch.setattr(made, "opens", lambda _: "/data/31.raw")
    monkeypatch.setattr(made, "note", lambda what, **row: noted.append((what, row.get("file", ""))))
    made.ask("a rank fails")
    assert noted == [("pipe", "/data/31.raw"), ("stacks", "")]


def _pass(made: Watcher, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1
        made.stalled()


@pytest.mark.parametrize("on_stall", ["report", "dump", "kill"])
def test_a_stall_is_looked_at_once_and_then_what_was_asked_for(
    watched: Any, clock: Clock, on_stall: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, done = watched
    made.on_stall = on_stall
    _pass(made, clock, 59)
    assert done == []
    _pass(made, clock, 300)
    assert done == ["stacks", "look", *([on_stall] if on_stall != "report" else [])]
    rows = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    [stall] = [row for row in rows if row["what"] == "stall"]
    assert 60 <= stall["silent"] <= 63
    assert stall["action"] == on_stall
    assert json.loads(capsys.readouterr().out)["stall"] == stall["silent"]


def test_a_job_that_was_silent_for_long_before_is_given_three_times_as_long(watched: Any, clock: Clock) -> None:
    made, done = watched
    _pass(made, clock, 50)
    made.jobs.alive = {7: _rank(cpu=9.0)}  # an evaluation has come to its end
    _pass(made, clock, 149)
    assert done == []
    _pass(made, clock, 10)
    assert done == ["stacks", "look"]


def test_a_look_that_sees_data_move_is_no_stall(
    watched: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, done = watched
    moves = {"seconds": 6.0, "processes": [{"moved": 10**6, "read": 0, "written": 0}]}
    monkeypatch.setattr(made, "look", lambda: done.append("look") or moves)
    _pass(made, clock, 62)
    assert done == ["stacks", "look"]
    assert '"stall"' not in (tmp_path / "events.jsonl").read_text()
