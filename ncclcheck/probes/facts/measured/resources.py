"""What one node had of cores, memory and room while its job ran, and who else took of them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Pid, Whole


class RankUse(Struct, frozen=True, kw_only=True):
    """The last look at the process of a rank that was alive.

    cpu_s: seconds of all its threads. memory: resident, bytes. tasks: its threads. files: open ones, null where
    they may not be counted. cores: those that its affinity mask leaves it. traced_by: the debugger or tracer that
    was attached at some look, `gdb (pid 4711)`. Source: proc_pid_stat(5), proc_pid_status(5), sched(7).
    """

    pid: Pid
    cpu_s: Amount
    memory: Whole
    tasks: Count
    files: Count | None = None
    cores: Count | None = None
    nice: int = 0
    policy: Literal["", "batch", "idle", "realtime"] = ""
    traced_by: str = ""


class Other(Struct, frozen=True, kw_only=True):
    """A process that is not the job's, and the cores that it took on average while the job ran."""

    pid: Pid
    user: str
    command: str
    cores: Amount
    nice: int = 0
    stopped: bool = False


class Filled(Struct, frozen=True, kw_only=True):
    """A directory at the end of the job. inodes_free: null where the file system has no fixed number of them."""

    name: Literal["temporary directory", "shared memory", "working directory"]
    path: str
    size: Whole
    free: Whole
    inodes_free: Whole | None = None
    read_only: bool = False


class Resources(Struct, frozen=True, kw_only=True):
    """What one node had between the start of its torchrun and its end.

    cores: of the host. oom_kills: processes of the job's control group that the kernel killed for memory;
    host_oom_kills: of the whole host. memory_limit: the least memory.max of the group and those above it;
    memory_peak: the most that the group has used since it was made. memory_refused, tasks_refused: how often
    the group was at memory.max and pids.max. memory_slowed: how often it was held back at memory.high. quota:
    cores; throttled: the share of its periods in which the quota was used up. some_stalled: share of the time
    in which some task of the host waited, for a core, for memory, for a disk. clock_step_s: how far the wall
    clock was set ahead (negative: back) meanwhile. stolen: the share of the host's cores that its hypervisor
    gave to others while they had work. freezer: the job's control group of the freezer, where it is not the
    root. What is null was not counted. Source: cgroups(7), proc_vmstat(5), kernel documentation,
    accounting/psi.
    """

    node: str
    seconds: Amount
    cores: Count | None = None
    oom_kills: Whole | None = None
    host_oom_kills: Whole | None = None
    memory_limit: Whole | None = None
    memory_peak: Whole | None = None
    memory_refused: Whole | None = None
    memory_slowed: Whole | None = None
    tasks_limit: Whole | None = None
    tasks_refused: Whole | None = None
    quota: Amount | None = None
    throttled: Amount | None = None
    stalled_cpu: Amount | None = None
    stalled_memory: Amount | None = None
    stalled_disk: Amount | None = None
    swapped: Whole | None = None
    clock_step_s: float = 0.0
    stolen: Amount | None = None
    freezer: str = ""
    ranks: list[RankUse] = field(default_factory=list)
    others: list[Other] = field(default_factory=list)
    places: list[Filled] = field(default_factory=list)
