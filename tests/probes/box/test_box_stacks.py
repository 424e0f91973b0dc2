"""Stacks of processes that are asked for by a signal: each in a file of its own, a forked worker's too."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from ncclcheck.probes.box.processes import Process, Processes
from ncclcheck.probes.box.stacks import Stacks
from ncclcheck.probes.live.machine.proc import Proc
from tests.conftest import environment
from tests.probes.box.test_sitecustomize import SOURCE

_NUMBER = 40
_JOB = """
import os, threading, time
lock = threading.Lock()
def held():
    with lock:
        print(os.getpid(), flush=True)
lock.acquire()
pid = os.fork()
if not pid:
    print(os.getpid(), flush=True)
    held()
time.sleep(60)
"""


def test_a_worker_that_waits_for_a_lock(tmp_path: Path) -> None:
    for name in ("said", "fault", "site"):
        (tmp_path / name).mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(SOURCE)
    (tmp_path / "job.py").write_text(_JOB)
    env = environment(NCCLCHECK_BOX=str(tmp_path), NCCLCHECK_BOX_SIGNAL=str(_NUMBER), RANK="0")
    env["PYTHONPATH"] = str(tmp_path / "site")
    argv = [sys.executable, str(tmp_path / "job.py")]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        worker = int(job.stdout.readline())
        time.sleep(0.3)
        alive = {
            job.pid: Process(job.pid, "", os.getpid(), 0.0, rank=0),
            worker: Process(worker, "", job.pid, 0.0, rank=0),
        }
        stacks = Stacks(str(tmp_path), _NUMBER, Proc())
        try:
            assert stacks.ask(alive, wait=True) == [job.pid]
            before = (tmp_path / f"fault/{job.pid}.txt").read_bytes()
            stacks.ask_workers(alive)
            assert (tmp_path / f"fault/{job.pid}.txt").read_bytes() == before
            text = (tmp_path / f"fault/{worker}.txt").read_text()
            assert "line 5 in held" in text
            assert b"line 5 in held" not in before
            assert stacks.written(alive) == [[job.pid, len(before)], [worker, len(text)]]
            stacks.ask_workers(alive)  # it has one
            assert stacks.ask(alive, wait=True) == [job.pid]
            assert b"line 5 in held" not in (tmp_path / f"fault/{job.pid}.txt").read_bytes()
            assert (tmp_path / f"fault/{worker}.txt").read_text() == text
        finally:
            os.kill(worker, 9)
            job.kill()


def test_a_process_that_does_not_catch_the_signal_gets_none(tmp_path: Path) -> None:
    (tmp_path / "fault").mkdir()
    with subprocess.Popen(["sleep", "60"]) as job:
        (tmp_path / f"fault/{job.pid}.txt").touch()
        try:
            assert (
                Stacks(str(tmp_path), _NUMBER, Proc()).ask({job.pid: Process(job.pid, "", 1, 0.0, rank=0)}) == []
            )
            assert job.poll() is None
        finally:
            job.kill()


def test_a_process_that_nobody_waits_for_ends_once(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "0.3"]) as child:
        jobs = Processes(str(tmp_path), child.pid, Proc())
        assert [process.pid for process in jobs.find(time.time())] == [child.pid]
        ended: list[int] = []
        for _ in range(20):
            time.sleep(0.05)
            assert jobs.find(time.time()) == []
            ended += [process.pid for process in [*jobs.measure(), *jobs.wait(0)]]
        assert ended == [child.pid]
