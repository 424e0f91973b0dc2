"""The look at /proc: a recorded tree, ranks that are this test's own children, and what it must not do."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from ncclcheck.probes.live import look, present, stream
from ncclcheck.probes.live.machine import cgroup, connections, proc

_MAPS = "7f00-7f01 r-xp 0 00:00 1 /lib/libtorch_cpu.so\n"


def _process(root: Path, pid: int, env: str, *, parent: int = 1, maps: str = _MAPS, state: str = "S") -> None:
    folder = root / "proc" / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    stat = f"{pid} (a ) b) {state} {parent} " + "0 " * 9 + "50 25 0 0 20 0 1 0 1000 0 0\n"
    for name, text in {"environ": env.replace(" ", "\0"), "maps": maps, "cmdline": "python\0train.py\0"}.items():
        (folder / name).write_text(text)
    for place in (folder, folder / "task" / str(pid)):
        (place / "stat").write_text(stat)
        (place / "wchan").write_text("futex_do_wait")


def test_ranks_are_found_and_their_helpers_with_them(tmp_path: Path) -> None:
    job = "WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=gpu-a MASTER_PORT=29500"
    _process(tmp_path, 10, f"RANK=2 LOCAL_RANK=0 {job}")
    _process(tmp_path, 11, f"RANK=3 LOCAL_RANK=1 {job}", maps="")  # bash -c
    _process(tmp_path, 12, f"RANK=3 LOCAL_RANK=1 {job}", parent=11, state="T")
    _process(tmp_path, 13, f"RANK=3 LOCAL_RANK=1 {job}", parent=12)  # a loader's worker
    _process(tmp_path, 14, "SLURM_PROCID=0 SLURM_NTASKS=1", maps="")
    _process(tmp_path, 15, "HOME=/root")
    seen = look.look(0.0, proc.Proc(str(tmp_path)), stacks=False)
    ranks = {
        process["pid"]: (process["rank"], process["helper"], process["state"], process["expected"])
        for process in seen["processes"]
    }
    assert ranks == {
        10: (2, False, "S", [2, 2]),
        11: (3, True, "S", [2, 2]),
        12: (3, False, "T", [2, 2]),
        13: (3, True, "S", [2, 2]),
    }
    assert {process["job"] for process in seen["processes"]} == {"gpu-a:29500"}


@pytest.mark.parametrize("env", ["RANK=x WORLD_SIZE=2", "RANK=1", "RANK=1 WORLD_SIZE=9999999999999", "="])
def test_a_strange_environment_is_no_rank(tmp_path: Path, env: str) -> None:
    _process(tmp_path, 10, env)
    assert look.look(0.0, proc.Proc(str(tmp_path)), stacks=False)["processes"] == []


def test_it_runs_from_stdin_beside_a_rank() -> None:
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with subprocess.Popen(["sleep", "60"], env=env) as rank:
        ran = subprocess.run(
            [sys.executable, "-", *stream.arguments(0.1, passive=True)],
            input=stream.program(),
            capture_output=True,
            timeout=60,
            check=True,
        )
        rank.kill()
    [process] = [process for process in json.loads(ran.stdout)["processes"] if process["pid"] == rank.pid]
    assert (process["was"], process["state"], process["wchan"], process["sockets"]) == (
        "S",
        "S",
        "hrtimer_nanosleep",
        0,
    )


@pytest.mark.parametrize(("argv", "stream_"), [(["cat"], "stdin"), (["yes"], "stdout")])
def test_a_pipe_that_is_a_standard_stream_is_named(argv: list[str], stream_: str) -> None:
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as rank:
        time.sleep(0.2)
        processes = look.look(0.1, proc.Proc(), stacks=False)["processes"]
        rank.kill()
    assert [process["stream"] for process in processes if process["pid"] == rank.pid] == [stream_]


_SQLITE = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=100).execute('insert into m values (1)')"
_LOCKF = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX)"


@pytest.mark.parametrize(("script", "named"), [(_SQLITE, True), (_LOCKF, False)])
def test_who_holds_the_lock_that_a_process_waits_or_asks_for_is_named(
    tmp_path: Path, script: str, named: bool
) -> None:
    path = tmp_path / "metrics.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("create table m (a)")
        db.commit()
        db.execute("insert into m values (0)")  # and no commit
        asks = subprocess.Popen([sys.executable, "-c", script, str(path)])
        holder, until = (0, ""), time.monotonic() + 60
        while not holder[0] and time.monotonic() < until:
            holder = look.holder_of(proc.Proc(), str(asks.pid))
        asks.kill()
        asks.wait()
    if named and not holder[0]:
        pytest.skip("a kernel before 5.14, whose fdinfo has no inode")
    assert holder == (os.getpid(), str(path) if named else "")


def test_a_thread_that_waits_for_a_core_counts_as_one_that_computes() -> None:
    """At load 16 it had 0.145 of one, while its main thread only waited for it."""
    process = {"pid": 7, "port": 0, "helper": False}
    group = cgroup.counted(proc.Proc("/nowhere"), "1")
    common = {
        "state": "S", "start": "1", "wchan": "futex_do_wait", "file": "", "stream": "", "slices": {}, "stuck": [],
        "faults": 0, "swap": 0, "read": 0, "written": 0, "group": group, "sockets": [],
    }  # fmt: skip
    first = {**common, "ticks": 0, "threads": {"7": 0, "8": 0}, "waited_ns": 0, "runnable": {"8": 0}}
    last = {**common, "ticks": 87, "threads": {"7": 0, "8": 87}, "waited_ns": 0, "runnable": {"8": 5_100_000_000}}
    assert look.compared(process, first, last, 6.0)["waited"] == 0.85
    only_asks = {**last, "threads": {"7": 0, "8": 3}}
    assert look.compared(process, first, only_asks, 6.0)["waited"] == 0.0


@pytest.mark.parametrize(
    ("groups", "files", "counts"),
    [
        (
            "0::/kubepods/pod7/main\n",
            {
                "kubepods/pod7/main/cpu.stat": "nr_periods 50\nnr_throttled 0\nthrottled_usec 0\n",
                "kubepods/pod7/cpu.stat": "nr_periods 60\nnr_throttled 30\nthrottled_usec 900\n",
                "kubepods/pod7/main/memory.events": "low 0\nhigh 4\nmax 3\noom 1\noom_kill 1\n",
                "kubepods/memory.events": "oom_kill 9\n",  # of others
            },
            (60, 30, 900, 7, 1),
        ),
        (
            "0::/outside/the/container\n",
            {"cpu.stat": "nr_periods 60\nnr_throttled 6\nthrottled_usec 9\n", "memory.events": "oom_kill 2\n"},
            (60, 6, 9, 0, 2),
        ),
        (
            "4:memory:/slurm/uid_7/job_3/step_0/task_1\n1:cpu,cpuacct:/a\n",
            {
                "cpu,cpuacct/a/cpu.stat": "nr_periods 9\nnr_throttled 5\nthrottled_time 7000\n",
                "memory/slurm/uid_7/job_3/step_0/task_1/memory.oom_control": "under_oom 0\noom_kill 0\n",
                "memory/slurm/uid_7/job_3/step_0/task_1/memory.failcnt": "12\n",
                "memory/slurm/uid_7/job_3/memory.oom_control": "oom_kill 1\n",
                "memory/slurm/uid_7/memory.oom_control": "oom_kill 8\n",  # of other jobs
            },
            (9, 5, 7, 12, 1),
        ),
    ],
)  # fmt: skip
def test_what_a_cgroup_has_counted(
    tmp_path: Path, groups: str, files: dict[str, str], counts: tuple[int, ...]
) -> None:
    _process(tmp_path, 7, "RANK=0")
    (tmp_path / "proc/7/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    counted = cgroup.counted(proc.Proc(str(tmp_path)), "7")
    names = ("periods", "throttled", "held_us", "refused", "oom_kill")
    assert tuple(counted[name] for name in names) == counts


def test_it_sends_no_signal_and_writes_no_file() -> None:
    source = "".join(Path(part.__file__ or "").read_text() for part in (look, proc, connections))
    assert not [word for word in ("os.kill", "signal", "ptrace(", '"w"', '"wb"', "os.open") if word in source]


def test_the_environment_of_now_is_read_in_a_process() -> None:
    code = (
        "import os, sys; os.environ['RANK'] = '7'; os.environ['SECRET'] = 'x'; print(flush=True); sys.stdin.read()"
    )
    env = {**os.environ, "RANK": "3", "WORLD_SIZE": "9"}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        environment = present.environment(proc.Proc(), str(child.pid), ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        child.kill()
    assert environment == {"RANK": "7", "WORLD_SIZE": "9"}


def test_the_environment_of_a_process_that_is_gone_is_empty() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert present.environment(proc.Proc(), str(child.pid), ("PATH",)) == {}


@pytest.mark.parametrize(
    ("end", "family", "text"),
    [
        ("0100007F:1F90", socket.AF_INET, "127.0.0.1:8080"),
        ("0000000000000000FFFF00000100007F:1F90", socket.AF_INET6, "127.0.0.1:8080"),
        ("B80D0120000000000000000001000000:1F90", socket.AF_INET6, "[2001:db8::1]:8080"),
    ],
)
def test_an_address_of_proc_is_read(end: str, family: int, text: str) -> None:
    if sys.byteorder != "little":
        pytest.skip("recorded on a little-endian machine")
    assert connections.address(family, connections.raw(end), 8080) == text
