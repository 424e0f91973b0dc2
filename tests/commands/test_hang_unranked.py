"""Real gloo jobs whose environment tells no rank: who is named, by what its rank is known, and what is no rank."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from ncclcheck.probes.facts import Live, replace
from ncclcheck.probes.live import look
from ncclcheck.probes.live.machine import proc
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import START_S, RunningJob, jobs, judged
from tests.conftest import ROOT


class Case(NamedTuple):
    """inside: the environment of now may be read. by: by what the rank that is named is known."""

    how: str
    fault: str
    kind: str
    by: str
    inside: bool = False


CASES = [
    Case("spawn", "sleep", "sleeping", "order"),
    Case("spawn", "none", "advances", "order"),
    Case("spawn", "SIGKILL", "missing", "order"),
    Case("spawn+env", "sleep", "sleeping", "order"),
    Case("spawn+env", "sleep", "sleeping", "environment", inside=True),
    Case("fork", "sleep", "sleeping", "order"),
    Case("fork", "SIGKILL", "missing", "order"),
    Case("pool", "sleep", "sleeping", "nothing"),
    Case("pool", "none", "advances", "nothing"),
]
IN_THE_GATE = [CASES[0], CASES[7]]


@contextmanager
def _job(case: Case, folder: Path) -> Iterator[tuple[RunningJob, list[int]]]:
    """The job as it is seen, and the process of each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = str(ROOT / "tests/jobs/unranked_job.py")
    argv = [sys.executable, program, case.how, case.fault, str(folder), str(port)]
    # A stand-in for Ray's raylet, which has begun all workers of its host.
    argv += ["raylet"] if case.how == "pool" else []
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    with (folder / "log").open("w") as log:
        launcher = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            pids = _wait_for(folder)
            time.sleep(1.5)
            yield _seen(f"127.0.0.1:{port}", case.inside), pids
        finally:
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait(10)


def _wait_for(folder: Path) -> list[int]:
    end, places = time.monotonic() + 90, [folder / f"ready{rank}" for rank in range(3)]
    while not all(place.exists() and place.read_text() for place in places):
        assert time.monotonic() < end, (folder / "log").read_text()
        time.sleep(0.1)
    return [int(place.read_text()) for place in places]


def _seen(name: str, inside: bool) -> RunningJob:
    """These jobs are seconds old; the rules would say that they are starting, so they are made older."""
    seen = look.look(3.0, proc.Proc(), stacks=False, inside=inside)
    live = msgspec.convert(seen, Live)
    old = [replace(process, age_s=process.age_s + START_S) for process in live.processes]
    return next(job for job in jobs([replace(live, processes=old)]) if job.name == name)


def _holds(case: Case, folder: Path) -> None:
    with _job(case, folder) as (job, pids):
        verdict = judged(job)
        assert verdict.kind == case.kind, job
        by_pid = {rank.pid: rank for rank in job.ranks}
        assert {*by_pid} == {*pids}
        assert job.world == 3
        assert (by_pid[pids[0]].rank, by_pid[pids[1]].rank_by) == (0, case.by)
        if case.by != "nothing":
            assert by_pid[pids[1]].rank == 1
        if case.kind == "missing":
            assert job.missing == [1]
        elif case.kind == "sleeping":
            assert [process.pid for process in verdict.who] == [pids[1]]
            known = case.by != "nothing"
            name = "rank 1" if known else f"process {pids[1]} (rank unknown)"
            assert (words.ranks(verdict.who), words.where(verdict.who).rank) == (name, 1 if known else None)


@pytest.mark.parametrize("case", IN_THE_GATE, ids=lambda case: case.how)
def test_it_is_seen(case: Case, tmp_path: Path) -> None:
    _holds(case, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.how}, {case.fault}, {case.by}")
def test_all_are_seen(case: Case, tmp_path: Path) -> None:
    _holds(case, tmp_path)


@pytest.mark.nightly
def test_the_agent_of_torchrun_is_no_rank(tmp_path: Path) -> None:
    (tmp_path / "pipe").touch()
    program = [str(ROOT / "tests/jobs/hang_job.py"), "healthy", str(tmp_path)]
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *program]
    with (tmp_path / "log").open("w") as log:
        agent = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
        try:
            end = time.monotonic() + 90
            while not all((tmp_path / f"ready{rank}").exists() for rank in range(2)):
                assert time.monotonic() < end, (tmp_path / "log").read_text()
                time.sleep(0.1)
            processes = look.look(1.0, proc.Proc(), stacks=False)["processes"]
            ranks = {process["pid"]: process for process in processes if process["parent"] == agent.pid}
            assert sorted(process["rank"] for process in ranks.values()) == [0, 1]
            assert {process["rank_by"] for process in ranks.values()} == {"environment"}
            assert agent.pid not in {process["pid"] for process in processes}
        finally:
            agent.terminate()  # it ends its ranks, which have groups of their own
            agent.wait(60)
