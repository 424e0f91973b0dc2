"""Real gloo jobs that hang, and some that do not: the class and the rank that `hang` sees from outside."""

from __future__ import annotations

import fcntl
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
from ncclcheck.reports.subjects.live.running import START_S, RunningJob, jobs, judged
from tests.conftest import ROOT


class Case(NamedTuple):
    """fault: of tests/jobs/hang_job.py, or a signal that rank 1 is sent. who: the ranks that are named."""

    fault: str
    kind: str
    who: tuple[int, ...] = ()
    ranks: int = 3


NAMED = [
    Case("SIGSTOP", "stopped", (1,)),
    Case("SIGKILL", "missing", (1,)),
    Case("exits", "missing", (1,)),
    Case("not started", "missing", (2,)),
    Case("open pipe", "storage", (1,)),
    Case("read pipe", "storage", (1,)),
    Case("worker waits", "storage", (1,)),
    Case("lock", "storage", (1,)),
    Case("sleep", "sleeping", (1,)),
    Case("poll", "sleeping", (1,)),
    Case("gil", "sleeping", (1,)),
    Case("busy", "computing", (1,)),
    Case("collective", "silent"),
    Case("unequal batches", "silent"),
    Case("receive", "silent"),
]
NOBODY = [
    Case("healthy", "advances"),
    Case("slow", "advances"),
    Case("straggler", "advances"),
    Case("saves", "works"),
    Case("all compute", "busy"),
]
TWO = [
    case._replace(ranks=2, who=case.who) for case in NAMED if case.who in ((1,), ()) and case.fault != "SIGKILL"
]
IN_THE_GATE = [NAMED[0], NAMED[5], NOBODY[0]]


@contextmanager
def _job(case: Case, folder: Path) -> Iterator[RunningJob]:
    """The job as it is seen once every rank is where it stays."""
    os.mkfifo(folder / "pipe")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(case.ranks)}
    argv = [sys.executable, str(ROOT / "tests/jobs/hang_job.py"), case.fault, str(folder)]
    started = case.ranks - (case.fault == "not started")
    with (folder / "lock").open("w") as lock, (folder / "log").open("w") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ranks = [
            subprocess.Popen(argv, env={**env, "RANK": str(n)}, stdout=log, stderr=log, start_new_session=True)
            for n in range(started)
        ]
        try:
            _wait_for(folder, case, started)
            if case.fault.startswith("SIG"):
                ranks[1].send_signal(getattr(signal, case.fault))
            time.sleep(1.5)
            yield _seen(f"127.0.0.1:{port}")
        finally:
            for rank in ranks:
                with suppress(ProcessLookupError):
                    os.killpg(rank.pid, signal.SIGKILL)  # and its children
                rank.wait(10)


def _wait_for(folder: Path, case: Case, ranks: int) -> None:
    end = time.monotonic() + 60
    if case.fault == "not started":
        time.sleep(8)
        return
    while not all((folder / f"ready{n}").exists() for n in range(ranks)):
        assert time.monotonic() < end, (folder / "log").read_text()
        time.sleep(0.1)


def _seen(name: str) -> RunningJob:
    """These jobs are seconds old; the rules would say that they are starting, so they are made older."""
    live = msgspec.convert(look.look(3.0, proc.Proc(), stacks=False), Live)
    old = [replace(process, age_s=process.age_s + START_S) for process in live.processes]
    return next(job for job in jobs([replace(live, processes=old)]) if job.name == name)


def _holds(case: Case, folder: Path) -> None:
    with _job(case, folder) as job:
        verdict = judged(job)
        assert verdict.kind == case.kind, [*job.ranks, *job.helpers]
        if case.kind == "missing":
            assert tuple(job.missing) == case.who
        elif case.who:
            assert tuple({process.rank for process in verdict.who}) == case.who


@pytest.mark.parametrize("case", IN_THE_GATE, ids=lambda case: case.fault)
def test_it_is_seen(case: Case, tmp_path: Path) -> None:
    _holds(case, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("case", [*NAMED, *NOBODY, *TWO], ids=lambda case: f"{case.fault}, {case.ranks} ranks")
def test_all_are_seen(case: Case, tmp_path: Path) -> None:
    _holds(case, tmp_path)
