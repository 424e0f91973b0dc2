"""Processes of jobs that run now, as two looks from outside show them."""

from __future__ import annotations

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Pid, Whole


class LiveProcess(Struct, frozen=True, kw_only=True):
    """A process of a job: a rank's own, or one that helps it, such as a loader's worker.

    job: what its ranks have in common, MASTER_ADDR:MASTER_PORT. expected: the first rank and the number of ranks
    that belong on this host, or nothing. libraries: of nccl, rccl, torch and cuda those that it has mapped. dumps:
    where its Flight Recorder would write. was, state: the letters of /proc/PID/stat at the first and the last
    look, or "gone"; was_wchan, wchan: the kernel function in which its main thread waited. file: what the main
    thread was reading at both. stuck: where threads in state D waited at both.

    Between the looks: cpu, waited, throttled: shares of one core that it had, that its main thread waited for one,
    and that its cgroup was held back; running: threads that had more than half a core; faults: pages read from
    disk; read, written: bytes; moved: bytes over its connections but the one to the store, null where it cannot be
    seen. closed: connections that the other side has closed; unread, unsent: bytes in their queues. stack: of its
    main thread, the innermost frame first.
    """

    host: str
    pid: Pid
    parent: Whole = 0
    rank: Count
    world: Count
    job: str
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
    sockets: Whole = 0
    closed: Whole = 0
    unsent: Whole = 0
    unread: Whole = 0
    moved: Whole | None = None
    stack: list[str] = field(default_factory=list)


class Unseen(Struct, frozen=True, kw_only=True):
    """A process of Python whose environment may not be read. user: its numeric owner."""

    pid: Pid
    command: str
    user: Whole = 0


class Live(Struct, frozen=True, kw_only=True):
    """What was seen on one host. seconds: between the looks. problem: why nothing was."""

    host: str
    seconds: Amount = 0.0
    processes: list[LiveProcess] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    problem: str = ""
