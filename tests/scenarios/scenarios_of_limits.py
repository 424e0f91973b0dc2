"""Scenarios of a host that lacks something: a limit, a place for files, room in its control group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ncclcheck.reports.judgement.findings import State
from tests.lab import slowness
from tests.scenarios.scenario import Expect, Play, Scenario, Scene

_MIB = 2**20
_QUICK = ("bench", "--quick", "--nproc-per-node", "1")


def _by_join(name: str, *expect: Expect, **more: object) -> Scenario:
    given: dict[str, object] = {"command": _QUICK, "hosts": 2, "seconds": 65, **more}
    return Scenario(name=f"limits: {name}", launcher="join", mgmt=False, expect=expect, **given)  # type: ignore[arg-type]


def _limit(option: str) -> dict[str, tuple[str, ...]]:
    """The soft limit of what is started on h2; `ulimit` may lift it again."""
    return {"h2": ("prlimit", f"--{option}:", "--")}


def _grouped(controller: str, **settings: int) -> dict[str, object]:
    """What is started on h2 has a control group of its own."""
    name = f"nclab-{controller}"
    return {
        "fault": lambda _: slowness.group(controller, name, settings),
        "under": {"h2": slowness.inside(controller, name)},
    }


def _temporary(options: str) -> Play:
    """TMPDIR of h2 is a file system of its own."""

    @contextmanager
    def play(scene: Scene) -> Iterator[None]:
        path = str(scene.folder)
        scene["h2"].check(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path])
        try:
            yield
        finally:
            scene["h2"].check(["umount", "--lazy", path])

    return play


def _run(code: str, words: str, remedy: str, state: State = State.FAIL) -> Expect:
    return Expect(code=code, node="h2", words=words, remedy=remedy, state=state)


OF_LIMITS = (
    _by_join(
        "no file may grow beyond 4 KiB",
        _run("RUN002", "a file may not grow beyond 4 KiB (RLIMIT_FSIZE", "ulimit -f unlimited"),
        under=_limit("fsize=4096"),
        also=("HST015",),
        cure="you",
    ),
    _by_join(
        "2 s of CPU time",
        _run("RUN002", "2 s are allowed (RLIMIT_CPU", "ulimit -t unlimited"),
        under=_limit("cpu=2"),
        also=("HST017",),
    ),
    _by_join(
        "200 MiB of data",
        _run("RUN002", "200 MiB of data are allowed (RLIMIT_DATA", "ulimit -d unlimited"),
        under=_limit(f"data={200 * _MIB}"),
        also=("HST014",),
        cure="you",
    ),
    _by_join(
        "too few processes in its control group",
        _run("RUN001", "no further process or thread may be started", "--pids-limit=-1", State.UNKNOWN),
        exit_code=3,
        **_grouped("pids", **{"pids.max": 14}),
    ),
    _by_join(
        "too little memory in its control group",
        _run("RUN002", "may have 250 MiB (memory.max)", "--mem=0"),
        also=("HST007",),
        **_grouped("memory", **{"memory.limit_in_bytes": 250 * _MIB}),
    ),
    _by_join(
        "a tenth of a core by its control group",
        _run("HST006", "a CPU quota leaves 1 rank 0.1 cores", "cpu.cfs_quota_us"),
        also=("BEN003", "BEN002", "BEN015"),
        command=("bench", "--nproc-per-node", "1", "--time-budget", "8", "--deadline", "200"),
        seconds=240,
        cure="admin",
        **_grouped("cpu", **{"cpu.cfs_quota_us": 10_000}),
    ),
    _by_join(
        "a TMPDIR without inodes",
        _run("RUN002", "no inode is left", "TMPDIR"),
        fault=_temporary("nr_inodes=6"),
    ),
    _by_join(
        "a TMPDIR that is read-only",
        _run("STO004", "is mounted read-only", "export TMPDIR=/tmp", State.WARN),
        fault=_temporary("ro"),
        also=("HST004",),
        command=("env",),
        exit_code=0,
    ),
    _by_join(
        "a TMPDIR that is not there",
        _run("HST004", "TMPDIR=/nonexistent is missing", "unset TMPDIR", State.WARN),
        under={"h2": ("env", "TMPDIR=/nonexistent")},
        command=("env",),
        exit_code=0,
    ),
)
