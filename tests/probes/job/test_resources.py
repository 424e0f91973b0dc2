"""What a node had of cores, memory and room while a job ran, and what of it holds a slow node back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Cluster,
    Lateness,
    Measurements,
    Other,
    RankState,
    RankUse,
    Resources,
    Run,
    replace,
)
from ncclcheck.probes.job.timing import summary
from ncclcheck.probes.job.usage import resources
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import cgroup
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.subjects.failures.limits.crowded import held_back
from tests.helpers.clusters import LO, nic, node, verdict
from tests.helpers.trees import tree

STAT = "{pid} (a b) c) {state} {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 {nice} 7 0 {begun} 0 100"
REST = " 0" * 16 + " {policy} 0"
V2 = {
    "/proc/self/cgroup": "0::/job\n",
    "/sys/fs/cgroup/job/memory.events": "low 0\nhigh 2\nmax 5\noom 1\noom_kill 1\n",
    "/sys/fs/cgroup/job/memory.peak": "4096\n",
    "/sys/fs/cgroup/job/pids.events": "max 3\n",
    "/sys/fs/cgroup/cpu.stat": "usage_usec 9\nnr_periods 100\nnr_throttled 40\nthrottled_usec 9\n",
}
V1 = {
    "/proc/self/cgroup": "8:pids:/job\n4:memory:/job\n1:cpu,cpuacct:/job\n",
    "/sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    "/sys/fs/cgroup/memory/job/memory.failcnt": "5\n",
    "/sys/fs/cgroup/memory/job/memory.max_usage_in_bytes": "4096\n",
    "/sys/fs/cgroup/pids/job/pids.events": "max 3\n",
    "/sys/fs/cgroup/cpu/job/cpu.stat": "nr_periods 100\nnr_throttled 40\nthrottled_time 9\n",
}  # fmt: skip


@pytest.mark.parametrize(("files", "high"), [(V2, {"memory_high": 2}), (V1, {})], ids=["version 2", "version 1"])
def test_counters_of_the_control_group(tmp_path: Path, files: dict[str, str], high: dict[str, int]) -> None:
    counted = {"oom_kill": 1, "memory_max": 5, "memory_peak": 4096, "pids_max": 3}
    quota = {"nr_periods": 100, "nr_throttled": 40}
    assert cgroup.counters(tree(tmp_path, files)) == counted | quota | high


def test_nothing_is_counted_where_there_is_nothing(tmp_path: Path) -> None:
    assert cgroup.counters(tree(tmp_path, {})) == {}
    had = resources.ResourceWatch(tree(tmp_path, {}), tmp_path / "proc").seen("a")
    assert (had.oom_kills, had.host_oom_kills, had.throttled, had.stalled_cpu, had.others) == (None,) * 4 + ([],)


def test_only_what_happened_meanwhile_counts(tmp_path: Path) -> None:
    files = {
        **V2,
        "/proc/vmstat": "oom_kill 7\npswpin 1\npswpout 1\n",
        "/proc/pressure/cpu": "some avg10=0.00 avg60=0.00 total=5\n",
    }
    watch = resources.ResourceWatch(tree(tmp_path, files))
    for path, text in (
        ("sys/fs/cgroup/job/memory.events", "high 2\nmax 6\noom_kill 3\n"),
        ("sys/fs/cgroup/cpu.stat", "nr_periods 200\nnr_throttled 90\n"),
        ("proc/vmstat", "oom_kill 9\npswpin 1\npswpout 3\n"),
        ("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 total=999999999\n"),
    ):
        (tmp_path / path).write_text(text)
    had = watch.seen("a")
    assert (had.oom_kills, had.host_oom_kills, had.memory_refused, had.memory_slowed) == (2, 2, 1, 0)
    assert (had.throttled, had.stalled_cpu) == (0.5, 1.0)
    assert had.swapped == 2 * os.sysconf("SC_PAGE_SIZE")
    assert abs(had.clock_step_s) < 1


def process_of(proc: Path, pid: int, ticks: int, command: str = "burn", **given: Any) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    values = {"state": "R", "parent": 1, "nice": 0, "begun": 5, "policy": 0, **given}
    (folder / "stat").write_text((STAT + REST).format(pid=pid, ticks=ticks, **values))
    (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode())


def test_other_processes_are_named_and_ours_are_not(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for pid in (10, 11, 13, 14, 15):
        process_of(proc, pid, 0)
    watch = resources.ResourceWatch(Machine(), proc)
    process_of(proc, 10, 10**6, "/opt/burn --api-key hunter2222", nice=5)
    process_of(proc, 11, 10**6, "python3 -m ncclcheck.node.ranks.worker")
    process_of(proc, 12, 9 * 10**5, "child", parent=11)  # began meanwhile
    process_of(proc, 13, 8 * 10**5, "stopped", state="T", begun=6)  # another one than before
    process_of(proc, 14, 0, "idle")
    shutil.rmtree(proc / "15")
    had = watch.seen("a")
    assert [process.pid for process in had.others] == [10, 13]
    assert had.others[0].nice == 5
    assert had.others[1].stopped
    assert had.others[0].command.startswith("/opt/burn --api-key")
    assert "hunter" not in had.others[0].command


def test_a_rank_is_kept_as_it_was_seen_last() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import os; os.nice(7); print(flush=True); input()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    watch = resources.ResourceWatch(Machine())
    watch.look([RankState(rank=0, node="a", pid=child.pid)])
    child.communicate(b"\n", timeout=20)
    watch.look([RankState(rank=0, node="a", pid=child.pid), RankState(rank=1, node="a")])
    (rank,) = watch.seen("a").ranks
    assert (rank.pid, rank.nice, rank.tasks, rank.policy) == (child.pid, 7, 1, "")
    assert rank.memory > 2**20
    assert rank.cores == len(os.sched_getaffinity(0))


RANK = RankUse(pid=7, cpu_s=5, memory=2**30, tasks=9, cores=8)
SOUND = Resources(node="a", seconds=20, cores=8, throttled=0.0, stalled_memory=0.0, stalled_disk=0.1, ranks=[RANK])
BURN = Other(pid=4711, user="alice", command="/usr/bin/stress-ng --cpu 4", cores=3.9)
HELD: list[tuple[dict[str, Any], str, str]] = [
    ({"throttled": 0.8, "quota": 0.2}, "quota of 0.2 cores (cpu.max) in 80 % of the periods", "CPUQuota="),
    ({"ranks": [replace(RANK, nice=19)]}, "it runs with nice 19, the others with 0", "renice -n 0 -p 7"),
    ({"ranks": [replace(RANK, policy="idle")]}, "SCHED_IDLE", "chrt -o -p 0 7"),
    ({"ranks": [replace(RANK, cores=1)]}, "it may use 1 of 8 cores", "--cpu-bind=none"),
    (
        {"others": [BURN]},
        "take 3.9 of its 8 cores there: stress-ng (pid 4711 of alice, 3.9 cores)",
        "kill -STOP 4711",
    ),
    ({"memory_slowed": 12}, "memory.high 12 times", "MemoryHigh=infinity"),
    (
        {"stalled_memory": 0.4, "swapped": 2**30},
        "waited for memory in 40 % of the time, and it swapped 1 GiB",
        "vmstat",
    ),
    ({"stalled_disk": 0.5}, "waited for disks (io) in 50 % of the time", "iostat"),
]


@pytest.mark.parametrize(("had", "words", "fix"), HELD)
def test_what_holds_a_late_rank_back(had: dict[str, Any], words: str, fix: str) -> None:
    judged = verdict("BEN003", *NODES, command="bench", measurements=measured(**had), run=RUN)
    (late,) = judged.findings
    assert (late.state, late.where.node, late.where.rank) == (State.FAIL, "b", 1)
    assert words in late.what
    assert "comes" in late.what
    assert fix in " ".join(line for remedy in late.remedies for line in remedy.commands)


@pytest.mark.parametrize(
    "had",
    [
        {},
        {"others": [replace(BURN, cores=0.3)]},
        {"throttled": 0.05, "quota": 7.0},
        {"stalled_disk": 0.1, "stalled_memory": 0.1, "memory_limit": 2**36},
        {"ranks": [replace(RANK, policy="batch")]},
    ],
)
def test_a_sound_but_odd_setup_is_not_accused(had: dict[str, Any]) -> None:
    assert held_back(Cluster(measurements=measured(**had)), "b", 7) is None


def test_what_is_the_same_on_all_nodes_is_not_why_one_is_late() -> None:
    nice = [replace(RANK, nice=5, cores=2)]
    both = [replace(SOUND, node=name, ranks=nice) for name in "ab"]
    assert held_back(Cluster(measurements=Measurements(resources=both)), "b", 7) is None
    assert held_back(Cluster(), "b", 7) is None


def test_a_quota_is_no_chance_where_all_ranks_lack_cores() -> None:
    starved = [
        replace(lateness, last=lateness.last // 2, runqueue_s=9, running=6.0) for lateness in measured().lateness
    ]
    for had, state in (({}, State.NOTE), ({"throttled": 0.7, "quota": 0.2}, State.FAIL)):
        measurements = replace(measured(**had), lateness=starved)
        (late,) = verdict("BEN003", *NODES, command="bench", measurements=measurements, run=RUN).findings
        assert (late.state, late.where.node) == (state, "b")


@pytest.mark.parametrize(("had", "where"), [({}, None), ({"others": [BURN]}, "b")])
def test_a_job_that_took_too_long_on_a_crowded_host(had: dict[str, Any], where: str | None) -> None:
    ranks = [replace(rank, phase="world", last_step="barrier", proc_state="R") for rank in RUN.ranks]
    late = replace(RUN, ranks=ranks, stopped_by="deadline")
    measurements = Measurements(resources=measured(**had).resources)
    (finding,) = verdict("RUN003", *NODES, command="bench", measurements=measurements, run=late).findings
    assert (finding.state, finding.where.node) == (State.UNKNOWN, where)
    assert ("pid 4711 of alice" in finding.what) == bool(had)


NODES = [node(name, LO, nic("eth0", f"10.1.0.{i}/24")) for i, name in enumerate("ab", 1)]
RUN = Run(ranks=[RankState(rank=n, node="ab"[n], pid=6 + n) for n in range(2)], started_job=True)


def measured(**of_b: Any) -> Measurements:
    """Rank 1, on b, waits for a core and is late; a is sound."""
    late = [
        Lateness(rank=n, node="ab"[n], iterations=100, last=100 * n, late_us=summary([n * 0.02] * 100), wall_s=3,
                 cpu_s=1, runqueue_s=1.8 * n)
        for n in range(2)
    ]  # fmt: skip
    return Measurements(lateness=late, resources=[SOUND, replace(SOUND, node="b", **of_b)])
