"""Processes of jobs that run now, as two looks from outside show them."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Pid, Whole
from ncclcheck.probes.facts.log.flight import Flight, Nanoseconds
from ncclcheck.probes.facts.log.logs import Logs

# The kernel's functions in which processes of a frozen control group wait (docker pause, a suspended step).
_FREEZERS = ("__refrigerator", "do_freezer_trap", "get_signal_freeze")
# From Linux 6.1 on a frozen process stays where it was, in state D. A signal could end the wait in these: state D
# in them is the freezer's alone. Seen with 6.18, cgroup v1; include/linux/freezer.h.
_NEVER_D = re.compile("futex|poll|nanosleep|do_wait$|sigsuspend")


def is_frozen(state: str, wchan: str) -> bool:
    """Whether the freezer of its control group holds a process, by its state and where in the kernel it waits."""
    return wchan in _FREEZERS or (state == "D" and bool(_NEVER_D.search(wchan)))


class LiveConnection(Struct, frozen=True, kw_only=True):
    """A connection of a rank whose job stands still. near, far: ADDRESS:PORT of its ends.

    sent_s, received_s: seconds since data last left here and last came. unsent, unread: bytes in its queues.
    retries: how often the kernel has sent the same data anew without an answer.
    """

    near: str
    far: str
    sent_s: Amount
    received_s: Amount
    unsent: Whole = 0
    unread: Whole = 0
    retries: Whole = 0


class LiveGpu(Struct, frozen=True, kw_only=True):
    """A GPU of a host at the first and the last look, in NVML's units; null where this GPU or driver has none.

    busy: percent of the time in which a kernel ran. pids: of processes that compute on it, as the host numbers
    them. xids: critical ones between the looks. lost: NVML gives no handle for it.
    """

    index: Whole
    lost: bool = False
    busy: list[Whole | None] = field(default_factory=list)
    power_mw: list[Whole | None] = field(default_factory=list)
    clock_mhz: list[Whole | None] = field(default_factory=list)
    power_limit_mw: Whole | None = None
    clock_limit_mhz: Whole | None = None
    pids: list[Whole] = field(default_factory=list)
    xids: list[Whole] = field(default_factory=list)


class LiveNic(Struct, frozen=True, kw_only=True):
    """An interface, or a port of an HCA, and what it counted between the looks. trouble: counters that grew."""

    name: str
    kind: Literal["interface", "HCA"] = "interface"
    state: str = ""
    received: Whole = 0
    sent: Whole = 0
    trouble: dict[str, Whole] = field(default_factory=dict)


class LiveProcess(Struct, frozen=True, kw_only=True):
    """A process of a job: a rank's own, or one that helps it, such as a loader's worker.

    job: what its ranks have in common, MASTER_ADDR:MASTER_PORT; scope: what else keeps jobs apart.
    orphan: a rank has left it behind, and is gone. expected: the first rank and the number of ranks
    that belong on this host, or nothing. libraries: of nccl, rccl, torch and cuda those that it has mapped. dumps:
    where its Flight Recorder would write. was, state: the letters of /proc/PID/stat at the first and the last
    look, or "gone"; was_wchan, wchan: the kernel function in which its main thread waited. file: what the main
    thread was reading at both; holder: the process that has locked it, 0 for none. stuck: where threads in state D
    waited at both.

    Between the looks: cpu, waited, throttled: shares of one core that it had, that its main thread, or another
    that computes, waited for one, and that its cgroup was held back; running: threads that had more than half a
    core; faults: pages read from disk; read, written: bytes; moved: bytes over its connections but the one to the
    store, null where it cannot be seen. closed: connections that the other side has closed; unread, unsent: bytes
    in their queues. stack: of its main thread, the innermost frame first. asks: the far end of the connection that
    its main thread read or wrote at both looks; lock_waits: threads that asked for Python's lock every 5 ms;
    apart: the share of samples in which its main thread waited for no thread and no answer. inside: its number in
    its own namespace. periods, used_up: of the CPU quota of its cgroup, and in how many it was used up; refused:
    how often the cgroup wanted more memory than its limit. oom_kills: processes of it, or of its Slurm job, that
    were killed for want of memory since it was made. rank_by: how its rank is known: its environment, the order in
    which one parent started all, that it has the store, or the name of a pipe; nothing: the number only tells the
    processes of a job apart. stores: of ranks without one in their environment, where their store may be, the
    connection that was made first before the others. begun: in ticks since its host was started.
    """

    host: str
    pid: Pid
    parent: Whole = 0
    rank: Count
    rank_by: Literal["environment", "order", "store", "pipe", "nothing"] = "environment"
    world: Count
    job: str
    stores: list[str] = field(default_factory=list)
    begun: Whole = 0
    expected: list[Count] = field(default_factory=list)
    launcher: str = ""
    command: str = ""
    libraries: list[str] = field(default_factory=list)
    dumps: str = ""
    age_s: Amount = 0.0
    helper: bool = False
    was: str = "S"
    state: str = "S"
    was_wchan: str = ""
    wchan: str = ""
    file: str = ""
    holder: Whole = 0
    stuck: list[str] = field(default_factory=list)
    cpu: Amount = 0.0
    threads: Whole = 1
    running: Whole = 0
    faults: Whole = 0
    swap: Whole = 0
    read: Whole = 0
    written: Whole = 0
    waited: Amount = 0.0
    throttled: Amount = 0.0
    periods: Whole = 0
    used_up: Whole = 0
    refused: Whole = 0
    oom_kills: Whole = 0
    sockets: Whole = 0
    closed: Whole = 0
    unsent: Whole = 0
    unread: Whole = 0
    moved: Whole | None = None
    stack: list[str] = field(default_factory=list)
    scope: str = ""
    orphan: bool = False
    asks: str = ""
    stream: str = ""
    lock_waits: Whole = 0
    apart: Amount = 0.0
    connections: list[LiveConnection] = field(default_factory=list)
    inside: Whole = 0


class NotHad(Struct, frozen=True, kw_only=True):
    """What a rank of a job was asked for and did not give."""

    job: str
    scope: str = ""
    why: str


class UnseenProcess(Struct, frozen=True, kw_only=True):
    """A process of Python whose environment may not be read. user: its numeric owner."""

    pid: Pid
    command: str
    user: Whole = 0


class Live(Struct, frozen=True, kw_only=True):
    """What was seen on one host. seconds: between the looks. cpu_s: what that took. problem: why nothing was seen.

    addresses: of its interfaces. gpu_problem: why NVML said nothing."""

    host: str
    seconds: Amount = 0.0
    cpu_s: Amount = 0.0
    processes: list[LiveProcess] = field(default_factory=list)
    unseen: list[UnseenProcess] = field(default_factory=list)
    problem: str = ""
    addresses: list[str] = field(default_factory=list)
    gpus: list[LiveGpu] = field(default_factory=list)
    gpu_problem: str = ""
    nics: list[LiveNic] = field(default_factory=list)
    not_had: list[NotHad] = field(default_factory=list)


class JobRecord(Struct, frozen=True, kw_only=True):
    """What ranks of one job have written down themselves, read as `ncclcheck logs` reads it.

    flight: Flight Recorder's dumps; oldest_s, youngest_s: how long ago they were written; written_ns: rank ->
    when, by its host's clock. logs: NCCL_DEBUG_FILE.
    """

    job: str
    scope: str = ""
    flight: Flight | None = None
    oldest_s: Amount = 0.0
    youngest_s: Amount = 0.0
    written_ns: dict[str, Nanoseconds] = field(default_factory=dict)
    logs: Logs | None = None
