"""A rank, a torchrun or an agent that ended because its node had run out of something: the limit is the cause."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Cluster,
    Filled,
    Host,
    Job,
    JobEnd,
    Limits,
    Measurements,
    Node,
    RankState,
    RankUse,
    Resources,
    Run,
    Silence,
    Stack,
    System,
    replace,
)
from ncclcheck.reports.culprit import culprits
from ncclcheck.reports.judgement.findings import Finding
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.helpers.clusters import LO, nic, node

MIB, GIB = 2**20, 2**30
USER = System(uid=1000, processes=4096, file_size=-1, address_space=-1, data=-1, cpu_seconds=-1, stack=8 * MIB)
RANK = RankUse(pid=102, cpu_s=9, memory=GIB, tasks=20)
SOUND = Resources(node="b", seconds=20, cores=8, oom_kills=0, host_oom_kills=0, ranks=[RANK])
FULL = Filled(name="shared memory", path="/dev/shm", size=64 * MIB, free=0)
NO_INODES = Filled(name="temporary directory", path="/scratch", size=GIB, free=GIB // 2, inodes_free=0)
CLOSED = Filled(name="temporary directory", path="/scratch", size=GIB, free=GIB, read_only=True)
BY_PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.1.0.2]:4711. This is GLHF!"


def run003(system: System, had: Resources | None = SOUND, nofile: int = 1024, **of_b: Any) -> Finding:
    """Rank 2 of four, on b, is lost; those of a say that it left."""
    ranks = [RankState(rank=n, node="ab"[n // 2], pid=100 + n, phase="world") for n in range(4)]
    ranks[:2] = [replace(rank, error=BY_PEER) for rank in ranks[:2]]
    ranks[2] = replace(ranks[2], proc_state="gone", **of_b)
    nodes = [
        replace(machine, system=system, host=Host(nofile=Limits(soft=nofile, hard=-1)))
        for machine in (node("a", LO, nic("eth0", "10.1.0.1/24")), node("b", LO, nic("eth0", "10.1.0.2/24")))
    ]
    (finding,) = _judged("RUN003", nodes, Run(ranks=ranks, started_job=True), had)
    assert finding.where.node == "b"
    assert finding.where.rank == 2
    return finding


def _judged(code: str, nodes: list[Node], run: Run, had: Resources | None) -> list[Finding]:
    measured = Measurements(resources=[had] if had else [])
    cluster = Cluster(command="bench", nodes=nodes, job=Job(ranks=4), run=run, measurements=measured)
    return judge(cluster, [rule for rule in all_rules() if rule.code == code])[0].findings


TRY_AGAIN = "BlockingIOError: [Errno 11] Resource temporarily unavailable"
HOST_FULL = "OSError: [Errno 23] Too many open files in system"
NO_ROOM = "OSError: [Errno 28] No space left on device: '/scratch/a'"
NO_QUOTA = "OSError: [Errno 122] Disk quota exceeded: '/home/u/x'"
EXHAUSTED: list[tuple[dict[str, Any], dict[str, Any], int | str, str, str]] = [
    ({"cpu_seconds": 60}, {}, -24, "60 s are allowed (RLIMIT_CPU", "ulimit -t unlimited"),
    ({"cpu_seconds": 10}, {}, -9, "10 s are allowed (RLIMIT_CPU", "ulimit -t unlimited"),
    ({"file_size": MIB}, {}, -25, "beyond 1 MiB (RLIMIT_FSIZE", "ulimit -f unlimited"),
    ({"file_size": MIB}, {}, "OSError: [Errno 27] File too large", "RLIMIT_FSIZE", "ulimit -f"),
    (
        {},
        {"oom_kills": 1, "memory_limit": 2 * GIB, "memory_peak": 2 * GIB},
        -9,
        "may have 2 GiB (memory.max)",
        "--mem=0",
    ),
    ({}, {"oom_kills": 1, "host_oom_kills": 1}, -9, "the host had none left", "--sort -rss"),
    ({}, {"oom_kills": 1, "memory_limit": 99 * GIB, "memory_peak": GIB}, -9, "the host had none left", "rss"),
    ({}, {"oom_kills": None, "host_oom_kills": 3}, -9, "the host had none left", "--sort -rss"),
    ({}, {"host_oom_kills": 3}, -9, "not by the OOM killer", "journalctl"),
    ({}, {}, -9, "not by the OOM killer", "journalctl"),
    ({}, {}, "RuntimeError: can't start new thread", "may have 4096 (RLIMIT_NPROC", "ulimit -u"),
    ({"uid": 0}, {"tasks_limit": 30, "tasks_refused": 4}, TRY_AGAIN, "may have 30 (pids.max)", "--pids-limit=-1"),
    ({}, {}, "OSError: [Errno 24] Too many open files", "1024 open files (RLIMIT_NOFILE", "ulimit -n"),
    ({}, {}, HOST_FULL, "fs.file-max", "sysctl -w fs.file-max"),
    ({"data": 200 * MIB}, {}, "MemoryError", "200 MiB of data are allowed (RLIMIT_DATA", "ulimit -d"),
    (
        {"data": 200 * MIB, "uid": 0},
        {"tasks_limit": 99, "tasks_refused": 0},
        TRY_AGAIN,
        "RLIMIT_DATA",
        "ulimit -d",
    ),
    ({"address_space": GIB}, {}, -6, "1 GiB of addresses are allowed (RLIMIT_AS", "ulimit -v"),
    ({}, {"memory_limit": GIB, "memory_refused": 7}, "MemoryError", "1 GiB (memory.max)", "--mem=0"),
    ({}, {"places": [FULL]}, -7, "no room is left in /dev/shm", "df -h /dev/shm"),
    ({}, {"places": [NO_INODES]}, NO_ROOM, "no inode is left in /scratch", "df -i /scratch"),
    ({}, {"places": [CLOSED]}, "OSError: Read-only file system", "of /scratch is mounted read-only", "findmnt"),
    ({}, {}, NO_QUOTA, "quota is used up at /home/u/x", "quota -s"),
    ({"stack": 65536}, {}, -11, "64 KiB only (RLIMIT_STACK", "ulimit -s 8192"),
]


def _lost(end: int | str) -> dict[str, Any]:
    return {"exit": end} if isinstance(end, int) else {"error": end}


@pytest.mark.parametrize(("system", "had", "end", "words", "fix"), EXHAUSTED)
def test_the_limit_is_the_cause(
    system: dict[str, Any], had: dict[str, Any], end: int | str, words: str, fix: str
) -> None:
    finding = run003(replace(USER, **system), replace(SOUND, **had), **_lost(end))
    assert words in finding.what
    assert fix in " ".join(line for remedy in finding.remedies for line in remedy.commands)
    assert len(finding.evidence) >= 2


@pytest.mark.parametrize(
    ("system", "had", "end"),
    [
        ({}, SOUND, -11),
        ({}, None, -9),
        ({"cpu_seconds": 3600}, None, -9),
        ({"stack": -1}, SOUND, -11),
        ({"address_space": 64 * GIB}, SOUND, -6),
        ({}, replace(SOUND, places=[replace(FULL, free=GIB)]), -7),
        ({"data": GIB, "address_space": GIB, "file_size": GIB}, SOUND, "ValueError: shapes differ"),
        ({}, SOUND, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
    ],
)
def test_nothing_was_exhausted(system: dict[str, Any], had: Resources | None, end: int | str) -> None:
    what = run003(replace(USER, **system), had, **_lost(end)).what
    assert not any(word in what for word in ("RLIMIT", "memory.max", "pids.max", "no room", "OOM"))


@pytest.mark.parametrize("of_b", [{}, {"exit": 1}, {"exit": None, "first": True}])
def test_who_died_without_a_word_is_blamed_and_not_those_whom_it_left(of_b: dict[str, Any]) -> None:
    assert "pid 102 is dead" in run003(USER, **of_b).what


def test_words_about_a_peer_whom_nobody_knows_accuse_who_said_them() -> None:
    ranks = [RankState(rank=n, node="ab"[n], pid=9 + n, phase="world", error=BY_PEER) for n in range(2)]
    (finding,) = _judged("RUN003", [node("a", LO), node("b", LO)], Run(ranks=ranks, started_job=True), None)
    assert (finding.where.node, finding.where.rank) == ("a", 0)
    assert culprits(Cluster(command="bench", run=Run(ranks=ranks, started_job=True))) == []


def test_a_torchrun_that_used_its_cpu_time_up() -> None:
    limited = replace(node("b", LO), system=replace(USER, cpu_seconds=2))
    run = Run(ends=[JobEnd(node="b", exit=-9)], started_job=True)
    (finding,) = _judged("RUN002", [node("a", LO), limited], run, replace(SOUND, seconds=5))
    assert finding.what.startswith("its CPU time was used up: 2 s are allowed (RLIMIT_CPU, ulimit -t)")


def test_a_torchrun_that_died_of_a_library_that_is_cut_short() -> None:
    def machine(name: str, number: int) -> Node:
        return replace(node(name, LO), stack=Stack(torch="2.13.0", torch_libraries=number))

    run = Run(ends=[JobEnd(node="b", exit=-7)], started_job=True)
    short = [machine("a", 466_212_928), machine("b", 37_028_128)]
    (finding,) = _judged("RUN002", short, run, None)
    assert finding.what.startswith("torch's libraries are cut short there: ")
    assert "--force-reinstall" in finding.remedies[0].commands[0]
    whole = [machine("a", 466_212_928), machine("b", 466_212_928)]
    (finding,) = _judged("RUN002", whole, run, None)
    assert "cut short there" not in finding.what


def test_a_torchrun_that_could_not_start() -> None:
    words = "torchrun could not be started: no place for a small private folder; tried /tmp: File too large"
    limited = replace(node("b", LO), system=replace(USER, file_size=4096))
    run = Run(ends=[JobEnd(node="b", exit=None, detail=words)], started_job=True)
    (finding,) = _judged("RUN002", [node("a", LO), limited], run, None)
    assert finding.what.startswith("a file may not grow beyond 4 KiB (RLIMIT_FSIZE, ulimit -f); the job could not")
    assert (finding.where.node, finding.owner) == ("b", "job")


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        ("ncclcheck: no further thread or process may be started here: pids.max allows 18", "pids.max"),
        ("OSError: [Errno 24] Too many open files: '/x'", "RLIMIT_NOFILE"),
        ("MemoryError", "RLIMIT_AS"),
        ("ImportError: libtorch_cpu.so: failed to map segment from shared object", "RLIMIT_AS"),
        ("OSError: [Errno 27] File too large", "RLIMIT_FSIZE"),
        ("OSError: [Errno 28] No space left on device: '/scratch/x'", "no room is left in /scratch/x"),
    ],
)
def test_an_agent_that_could_not_live(detail: str, words: str) -> None:
    silence = Silence(node="h3", last_step="", since_s=2, detail=f"Traceback\n{detail}", via="ssh", exit=1)
    (finding,) = _judged("RUN001", [], Run(silent=[silence]), None)
    assert words in finding.what
    assert (finding.where.node, finding.owner) == ("h3", "node" if "room" in words else "job")
