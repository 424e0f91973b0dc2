"""What this node has of cores, memory and room while a job runs on it, and who else takes of them.

Counters are read before the job and after it, however it ended; ranks are looked at while they are alive, for the
kernel forgets what a process had with its end.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from ncclcheck.probes.facts import Filled, Other, RankState, RankUse, Resources, Unread, replace
from ncclcheck.probes.facts.guard.secrets import masked
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import cgroup
from ncclcheck.probes.machine.host.host import within

_PROC = Path("/proc")
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_LEAST_CORES = 0.2  # that a process takes on average, to be named; reasoned: less slows nobody by much
_MOST_NAMED = 6  # processes of others, the hungriest: chosen for one finding
_LONGEST_S = 1.0  # seconds, for file systems and name servers that do not answer
_UNSEEN = "by a process outside of its container, which is not seen from there"
_LOOKS_HELD = 2  # one may have been a look of somebody's profiler; chosen
_OURS = b"ncclcheck"  # in the command lines of agents, torchrun and ranks; simulated nodes share a machine
_POLICIES: dict[int, Literal["", "batch", "idle", "realtime"]] = {
    **{1: "realtime", 2: "realtime", 3: "batch"},
    **{5: "idle", 6: "realtime"},
}
_PRESSURES = ("cpu", "memory", "io")


class _Stat(NamedTuple):
    """What /proc/PID/stat says. Source: proc_pid_stat(5)."""

    state: str
    parent: int
    cpu_s: float
    nice: int
    tasks: int
    begun: int
    memory: int
    policy: int


class ResourceWatch:
    """Watches from its making until it is asked."""

    def __init__(self, machine: Machine, proc: Path = _PROC) -> None:
        self._machine, self._proc = machine, proc
        self._begun, self._wall = time.monotonic(), _wall_ahead()
        self._counted, self._pressure = _counters(machine), _pressures(machine)
        self._processes, self._cores = _processes(proc), _cores(machine)
        self._ranks: dict[int, RankUse] = {}
        self._held: dict[int, int] = {}

    def look(self, ranks: Iterable[RankState]) -> None:
        """Read what each rank uses; to be called again and again while the ranks live."""
        for rank in ranks:
            if rank.pid is not None and (use := _rank(self._proc, rank.pid)):
                before = self._ranks.get(rank.pid)
                traced = use.traced_by or (before.traced_by if before else "") or self._by_unseen(rank.pid)
                self._ranks[rank.pid] = replace(use, traced_by=traced)

    def _by_unseen(self, pid: int) -> str:
        """A tracer of another pid namespace (strace on the host of a container) has no number here.

        Its traces have: threads that stand in state t at more than one look.
        """
        self._held[pid] = self._held.get(pid, 0) + _is_held(self._proc / str(pid))
        return _UNSEEN if self._held[pid] >= _LOOKS_HELD else ""

    def seen(self, node: str, temporary: str = "") -> Resources:
        """What was seen. temporary: the directory in which the job has its files."""
        seconds = max(0.001, time.monotonic() - self._begun)
        now = _counters(self._machine)
        rose = {name: max(0, value - self._counted.get(name, value)) for name, value in now.items()}
        pressure = {
            name: round(min(1.0, (total - self._pressure[name]) / 1e6 / seconds), 3)
            for name, total in _pressures(self._machine).items()
            if total >= self._pressure.get(name, total + 1)
        }
        return Resources(
            node=node,
            seconds=round(seconds, 3),
            cores=os.cpu_count(),
            oom_kills=rose.get("oom_kill"),
            host_oom_kills=rose.get("host_oom_kill"),
            memory_limit=cgroup.memory(self._machine),
            memory_peak=now.get("memory_peak"),
            memory_refused=rose.get("memory_max"),
            memory_slowed=rose.get("memory_high"),
            tasks_limit=cgroup.tasks(self._machine),
            tasks_refused=rose.get("pids_max"),
            quota=quota[0] if (quota := cgroup.cores(self._machine)) else None,
            throttled=_share(rose),
            stalled_cpu=pressure.get("cpu"),
            stalled_memory=pressure.get("memory"),
            stalled_disk=pressure.get("io"),
            swapped=rose.get("swapped"),
            clock_step_s=round(_wall_ahead() - self._wall, 3),
            stolen=_stolen(self._cores, _cores(self._machine)),
            freezer=_freezer(self._machine),
            ranks=[*self._ranks.values()],
            others=self._others(seconds),
            places=_places(temporary or os.environ.get("TMPDIR") or "/tmp"),
        )

    def _others(self, seconds: float) -> list[Other]:
        """Processes that took cores and are not ours, those that took most first."""
        busy = [
            (cores, pid, stat)
            for pid, stat in _processes(self._proc).items()
            if (cores := _spent(stat, self._processes.get(pid)) / seconds) >= _LEAST_CORES
            and not self._is_ours(pid)
        ]
        return [
            Other(
                pid=pid,
                user=_user(self._proc / str(pid)),
                command=_command(self._proc / str(pid)),
                cores=round(cores, 2),
                nice=stat.nice,
                stopped=stat.state in "Tt",
            )
            for cores, pid, stat in sorted(busy, reverse=True)[:_MOST_NAMED]
        ]

    def _is_ours(self, pid: int) -> bool:
        """A descendant of this process, or of another node's agent on the same machine."""
        for upward in _upwards(self._proc, pid):
            if upward == os.getpid() or _OURS in _cmdline(self._proc / str(upward)):
                return True
        return False


def _wall_ahead() -> float:
    """The wall clock less one that nobody sets, and that goes on while the machine sleeps."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _counters(machine: Machine) -> dict[str, int]:
    """Of the job's control group, and of the whole host."""
    counts = cgroup.counters(machine)
    text = machine.read("/proc/vmstat", 65536)
    rows = [] if isinstance(text, Unread) else [line.split() for line in text.splitlines()]
    host = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}
    if "oom_kill" in host:
        counts["host_oom_kill"] = host["oom_kill"]
    if "pswpin" in host and "pswpout" in host:
        counts["swapped"] = (host["pswpin"] + host["pswpout"]) * _PAGE
    return counts


def _cores(machine: Machine) -> list[int]:
    """Ticks of all cores: user nice system idle iowait irq softirq steal. Source: proc_stat(5)."""
    text = machine.read("/proc/stat", 4096)
    words = [] if isinstance(text, Unread) else text.partition("\n")[0].split()[1:9]
    return [int(word) for word in words] if len(words) == 8 and all(map(str.isdecimal, words)) else []


def _stolen(before: list[int], after: list[int]) -> float | None:
    """Of the time in which the cores had work, the share that the hypervisor took."""
    rose = [max(0, now - then) for then, now in zip(before, after, strict=False)]
    wanted = sum(rose) - rose[3] - rose[4] if rose else 0
    return round(rose[7] / wanted, 3) if wanted else None


def _freezer(machine: Machine) -> str:
    """`12:freezer:/docker/4af` of /proc/self/cgroup, of control groups of version 1. Source: cgroups(7)."""
    text = machine.read("/proc/self/cgroup")
    lines = [line.split(":", 2) for line in ("" if isinstance(text, Unread) else text).splitlines()]
    paths = [line[2] for line in lines if len(line) == 3 and "freezer" in line[1].split(",")]
    return next((path for path in paths if path != "/"), "")


def _share(rose: dict[str, int]) -> float | None:
    periods = rose.get("nr_periods", 0)
    return round(min(1.0, rose.get("nr_throttled", 0) / periods), 3) if periods else None


def _pressures(machine: Machine) -> dict[str, int]:
    """Microseconds in which some task of the host waited, since it started. Source: accounting/psi."""
    waits: dict[str, int] = {}
    for name in _PRESSURES:
        text = machine.line(f"/proc/pressure/{name}")
        words = [] if isinstance(text, Unread) else text.split("\n", 1)[0].split()
        totals = [word.removeprefix("total=") for word in words if word.startswith("total=")]
        if words[:1] == ["some"] and totals and totals[0].isdecimal():
            waits[name] = int(totals[0])
    return waits


def _processes(proc: Path) -> dict[int, _Stat]:
    with suppress(OSError):
        pids = [int(name) for name in os.listdir(proc) if name.isdecimal()]
        return {pid: stat for pid in pids if (stat := _stat(proc / str(pid)))}
    return {}


def _stat(folder: Path) -> _Stat | None:
    with suppress(OSError, ValueError, IndexError):
        words = (folder / "stat").read_bytes().rsplit(b")", 1)[1].split()
        return _Stat(
            state=words[0].decode(errors="replace"),
            parent=int(words[1]),
            cpu_s=(int(words[11]) + int(words[12])) / _TICKS,
            nice=int(words[16]),
            tasks=int(words[17]),
            begun=int(words[19]),
            memory=int(words[21]) * _PAGE,
            policy=int(words[38]),
        )
    return None


def _spent(now: _Stat, before: _Stat | None) -> float:
    """CPU seconds since the first look; a number that was given to another process since then counts anew."""
    return now.cpu_s - (before.cpu_s if before and before.begun == now.begun else 0.0)


def _upwards(proc: Path, pid: int) -> Iterator[int]:
    """The pids of a process and of all its ancestors."""
    for _ in range(64):
        yield pid
        stat = _stat(proc / str(pid))
        if stat is None or stat.parent <= 1:
            return
        pid = stat.parent


def _cmdline(folder: Path) -> bytes:
    with suppress(OSError), (folder / "cmdline").open("rb") as file:
        return file.read(4096)
    return b""


def _command(folder: Path) -> str:
    words = _cmdline(folder).replace(b"\0", b" ").decode(errors="backslashreplace").strip()
    if not words:
        with suppress(OSError):
            words = f"[{(folder / 'comm').read_text(errors='backslashreplace').strip()}]"
    return masked(words)[:120]


def _user(folder: Path) -> str:
    """The name of the owner where it is known in time, else the number."""
    try:
        return _name_of(folder.stat().st_uid)
    except OSError:
        return "nobody known"


@lru_cache(maxsize=64)  # a name server that is away is waited for once a user
def _name_of(uid: int) -> str:
    named = within(_LONGEST_S, f"getpwuid({uid})", lambda: pwd.getpwuid(uid).pw_name)
    return str(uid) if isinstance(named, Unread) else named


def _rank(proc: Path, pid: int) -> RankUse | None:
    """None of a process that has ended."""
    stat = _stat(proc / str(pid))
    if stat is None or stat.state in "ZX":
        return None
    files = cores = None
    with suppress(OSError):
        files = len(os.listdir(proc / str(pid) / "fd"))
    with suppress(OSError):
        cores = len(os.sched_getaffinity(pid))
    return RankUse(
        pid=pid,
        cpu_s=stat.cpu_s,
        memory=stat.memory,
        tasks=stat.tasks,
        files=files,
        cores=cores,
        nice=stat.nice,
        policy=_POLICIES.get(stat.policy, ""),
        traced_by=_tracer(proc, pid),
    )


def _is_held(folder: Path) -> bool:
    """Whether a tracer holds some thread of it at this moment. Source: proc_pid_stat(5), state t."""
    with suppress(OSError):
        return any((stat := _stat(task)) is not None and stat.state == "t" for task in (folder / "task").iterdir())
    return False


def _tracer(proc: Path, pid: int) -> str:
    """Who has attached to it with ptrace(2); empty where nobody has. Source: proc_pid_status(5)."""
    with suppress(OSError, ValueError, IndexError):
        status = (proc / str(pid) / "status").read_text(errors="backslashreplace")
        number = int(status.partition("TracerPid:")[2].split()[0])
        with suppress(OSError):
            name = (proc / str(number) / "comm").read_text(errors="backslashreplace").strip()
            return f"{name} (pid {number})" if number else ""
        return f"a process of another namespace (pid {number})" if number else ""
    return ""


def _places(temporary: str) -> list[Filled]:
    named: tuple[tuple[Literal["temporary directory", "shared memory"], str], ...] = (
        ("temporary directory", temporary),
        ("shared memory", "/dev/shm"),
    )
    systems = [(name, path, within(_LONGEST_S, path, lambda path=path: os.statvfs(path))) for name, path in named]  # type: ignore[misc]
    return [
        Filled(
            name=name,
            path=path,
            size=of.f_blocks * of.f_frsize,
            free=of.f_bavail * of.f_frsize,
            inodes_free=of.f_favail if of.f_files else None,
            read_only=bool(of.f_flag & os.ST_RDONLY),
        )
        for name, path, of in systems
        if not isinstance(of, Unread)
    ]
