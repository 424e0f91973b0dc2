"""Slurm: the real agents behind a program that stands for srun, and says what a real one said (Slurm 22.05)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from ncclcheck.base import wire
from ncclcheck.base.errors import UsageError
from ncclcheck.launch import slurm
from ncclcheck.launch.agents import AgentRecord, Closed, Event, Events, Link, TiedLink
from ncclcheck.launch.hosts import nodelist
from ncclcheck.launch.remote import srun_words

_PYTHON = sys.executable
_SRUN = """\
#!/bin/sh
"exec" "{python}" "$0" "$@"
# Stands for srun: starts the command once for each node of --nodelist, or fails as told in FAKE_SRUN_*.
import contextlib, os, subprocess, sys, threading
sys.path.insert(0, {root!r})
from ncclcheck.launch.hosts import nodelist
at = sys.argv.index("--wait=0") + 1
options, command = sys.argv[1:at], sys.argv[at:]
nodes = nodelist.expand(next(o for o in options if o.startswith("--nodelist=")).split("=")[1], "fake")
with open({folder!r} + "/starts", "a") as file:
    file.write(" ".join(nodes) + "\\n")
assert f"--nodes={{len(nodes)}}" in options and f"--ntasks={{len(nodes)}}" in options
assert not [name for name in os.environ if name in ("SLURM_NTASKS", "SLURM_LABELIO", "SLURM_CPU_BIND")]
bad = [node for node in nodes if node in os.environ.get("FAKE_SRUN_SILENT", "").split()]
down = [node for node in nodes if node in os.environ.get("FAKE_SRUN_DOWN", "").split()]
if down:
    sys.exit("srun: error: Unable to create step for job 7: Required node not available (down)")
tasks = [
    (node, subprocess.Popen(command, env={{**os.environ, "SLURMD_NODENAME": node, "SLURM_PROCID": str(task)}},
                            stdin=subprocess.PIPE))
    for task, node in enumerate(nodes) if node not in bad + os.environ.get("FAKE_SRUN_QUIET", "").split()
]
for node in bad:
    print(f"srun: error: Task launch for StepId=7.0 failed on node {{node}}: Communication connection failure",
          file=sys.stderr, flush=True)
if bad:
    for number, (node, task) in enumerate(tasks):
        print(f"srun: error: {{node}}: task {{number}}: Killed", file=sys.stderr, flush=True)
def orders():
    for line in sys.stdin.buffer:
        for _, task in tasks:
            with contextlib.suppress(OSError):
                task.stdin.write(line)
                task.stdin.flush()
    for _, task in tasks:
        task.stdin.close()
threading.Thread(target=orders, daemon=True).start()
def wait(number, node, task):
    if node == os.environ.get("FAKE_SRUN_ENDS"):
        task.kill()
    if status := task.wait():
        how = f"Exited with exit code {{status}}" if status > 0 else "Killed"
        print(f"srun: error: {{node}}: task {{number}}: {{how}}", file=sys.stderr, flush=True)
waits = [threading.Thread(target=wait, args=(number, *task)) for number, task in enumerate(tasks)]
for thread in waits:
    thread.start()
"""

# The port is no port of this machine: the agent says at once that its job has ended.
_JOB = wire.StartJob(
    run_id="x", endpoint="192.0.2.1:1", is_host=True, local_addr="", nodes=2, ranks_per_node=1, backend="gloo",
    plan=msgspec.Raw(b"{}"), env={}, seconds=5,
)  # fmt: skip


class Run:
    """The launcher's events over a fake srun."""

    def __init__(self, link: Link, events: Events, folder: Path) -> None:
        self.link, self.events, self.folder = link, events, folder
        self.seen: list[Event] = []

    def until(self, true: Callable[[], bool], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not true():
            self.seen.append(self.events.get(timeout=max(0.01, end - time.monotonic())))

    @property
    def closed(self) -> dict[int, str]:
        return {event.node: event.detail for event in self.seen if isinstance(event, Closed)}

    @property
    def facts(self) -> list[tuple[int, str]]:
        records = [(e.node, e.record) for e in self.seen if isinstance(e, AgentRecord)]
        return [(node, record.node.name) for node, record in records if isinstance(record, wire.Facts)]

    @property
    def records(self) -> list[wire.FromAgent]:
        return [event.record for event in self.seen if isinstance(event, AgentRecord)]

    @property
    def starts(self) -> list[str]:
        return (self.folder / "starts").read_text().splitlines()


@contextmanager
def srun(folder: Path, nodes: str, **env: str) -> Iterator[Run]:
    program = folder / "srun"
    root = str(Path(slurm.__file__).parents[2])
    program.write_text(_SRUN.format(python=_PYTHON, root=root, folder=str(folder)))
    program.chmod(0o755)
    given = {
        **os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": nodes, "SLURM_NTASKS": "9",
        "SLURM_LABELIO": "1", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", **env,
    }  # fmt: skip
    events = Events()
    links = slurm.start(slurm.names(None, given), events, given, "--probe-seconds", "10")
    try:
        yield Run(links[0], events, folder)
    finally:
        for link in links:
            link.send(None, wire.Stop())
            link.close(5)


def test_all_nodes_answer_under_their_own_numbers(tmp_path: Path) -> None:
    with srun(tmp_path, "h[2-3],b") as run:
        run.until(lambda: len(run.facts) == 3)
        assert sorted(run.facts) == [(0, "h2"), (1, "h3"), (2, "b")]
        assert run.closed == {}
        assert run.starts == ["h2 h3 b"]


def test_a_silent_node_is_named_once_and_the_others_keep_their_numbers(tmp_path: Path) -> None:
    with srun(tmp_path, "h[1-3]", FAKE_SRUN_SILENT="h1") as run:
        run.until(lambda: bool(run.closed))
        assert run.starts == ["h1 h2 h3", "h2 h3"]
        error = "srun: error: Task launch for StepId=7.0 failed on node h1: Communication connection failure"
        assert run.closed == {0: error}
        assert sorted(set(run.facts)) == [(1, "h2"), (2, "h3")]
        assert isinstance(run.seen[-1], Closed), "the others have begun anew before it is told"


def test_a_sign_of_life_is_no_order_that_holds_agents_to_their_step(tmp_path: Path) -> None:
    with srun(tmp_path, "h[1-3]", FAKE_SRUN_SILENT="h1") as run:
        run.link.send(None, wire.Alive())
        run.until(lambda: bool(run.closed))
        assert run.starts == ["h1 h2 h3", "h2 h3"]


def test_a_node_that_srun_still_tries_is_left_out(tmp_path: Path) -> None:
    with srun(tmp_path, "h[1-3]", FAKE_SRUN_QUIET="h2") as run:
        run.until(lambda: len(run.facts) == 2)
        link = run.link
        assert isinstance(link, TiedLink)
        assert link.go_on_without({1}), "the others tell their facts again"
        run.until(lambda: bool(run.closed))
        assert run.starts == ["h1 h2 h3", "h1 h3"]
        assert list(run.closed) == [1]
        assert "h2: srun started no agent there" in run.closed[1]
        assert sorted(run.facts) == [(0, "h1"), (0, "h1"), (2, "h3"), (2, "h3")]
        link.send(0, _JOB)
        assert not link.go_on_without({2}), "agents with orders are left alone"


def test_where_nobody_answers_nothing_is_gained_by_a_new_start(tmp_path: Path) -> None:
    with srun(tmp_path, "h[1-2]", FAKE_SRUN_QUIET="h1 h2") as run:
        assert isinstance(run.link, TiedLink)
        assert not run.link.go_on_without({0, 1})
        run.until(lambda: len(run.closed) == 2)
        assert run.starts == ["h1 h2"]


def test_slurm_refuses_the_step_without_naming_a_node(tmp_path: Path) -> None:
    with srun(tmp_path, "h[1-4]", FAKE_SRUN_DOWN="h3") as run:
        run.until(lambda: len(set(run.facts)) == 3 and bool(run.closed))
        assert list(run.closed) == [2]
        assert "Required node not available" in run.closed[2]
        assert sorted(run.starts) == sorted(["h1 h2 h3 h4", "h1 h2", "h3 h4", "h3", "h4"])


def test_restarts_are_bounded(tmp_path: Path) -> None:
    with srun(tmp_path, "h[1-3]", FAKE_SRUN_SILENT="h1 h2 h3") as run:
        run.until(lambda: len(run.closed) == 3)
        assert run.starts == ["h1 h2 h3"]


def test_a_task_that_ends_closes_its_node_alone(tmp_path: Path) -> None:
    with srun(tmp_path, "h[1-2]", FAKE_SRUN_ENDS="h2") as run:
        run.until(lambda: bool(run.closed) and bool(run.facts))
        assert run.closed == {1: "srun: error: h2: task 1: Killed"}
        assert run.facts == [(0, "h1")]


def test_agents_with_orders_are_left_alone_when_a_node_fails(tmp_path: Path) -> None:
    with srun(tmp_path, "h[1-2]", FAKE_SRUN_SILENT="h2") as run:
        run.link.send(0, _JOB)
        run.until(lambda: 1 in run.closed and any(isinstance(record, wire.JobEnded) for record in run.records))
        assert list(run.closed) == [1]
        assert run.starts == ["h1 h2"]


def test_no_interpreter_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no such/python")
    with srun(tmp_path, "h1") as run:
        run.until(lambda: bool(run.closed))
        assert "ncclcheck: h1: no interpreter /no such/python there" in run.closed[0]


def test_the_first_nodes_of_an_allocation(tmp_path: Path) -> None:
    (tmp_path / "srun").touch(0o755)
    assert slurm.names(2, {"SLURM_JOB_NODELIST": "a[1-4]", "PATH": str(tmp_path)}) == ("a1", "a2")


@pytest.mark.parametrize(
    ("asked", "env", "word"),
    [
        (None, {}, "SLURM_JOB_NODELIST is not set"),
        (3, {"SLURM_JOB_NODELIST": "a[1-2]"}, "--nodes: 3 is out of range; the allocation has 2"),
        (None, {"SLURM_JOB_NODELIST": "a[1-"}, "SLURM_JOB_NODELIST: 'a"),
        (None, {"SLURM_JOB_NODELIST": "a", "PATH": "/nowhere"}, "no srun is on PATH"),
    ],
)
def test_wrong_usage(tmp_path: Path, asked: int | None, env: dict[str, str], word: str) -> None:
    (tmp_path / "srun").touch(0o755)
    with pytest.raises(UsageError, match=word):
        slurm.names(asked, {"PATH": str(tmp_path), **env})


@pytest.mark.parametrize(
    ("line", "failed", "ended"),
    [
        ("srun: error: Task launch for StepId=5.0 failed on node h3: Socket timed out on send/recv", ["h3"], []),
        ("srun: error: Task launch for 5.0 failed on node h3: Job credential expired", ["h3"], []),
        ("srun: error: Node failure on h3", ["h3"], []),
        ("srun: error: Nodes h[3-4] are still not ready", ["h3", "h4"], []),
        ("srun: error: h3: task 2: Exited with exit code 127", [], ["h3"]),
        ("srun: error: h[3,5]: tasks 2-3: Segmentation fault (core dumped)", [], ["h3", "h5"]),
        ("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", [], []),
        ("srun: error: Task launch for 5.0 failed on node h[1-: x", [], []),
    ],
)
def test_words_of_srun(line: str, failed: list[str], ended: list[str]) -> None:
    assert list(srun_words.failed_nodes(line)) == failed
    assert list(srun_words.ended_tasks(line)) == ended


def test_a_nodes_own_number() -> None:
    env = {nodelist.VARIABLE: "h[1-3]"}
    assert nodelist.number_of("h2", env) == 1
    assert nodelist.number_of("h2", {}) is None
    with pytest.raises(UsageError, match="h9 is not among its 3 nodes"):
        nodelist.number_of("h9", env)
