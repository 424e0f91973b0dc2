"""The machine, and what this process may use of it."""

from __future__ import annotations

from msgspec import Struct

from ncclcheck.probes.facts.guard.unread import NOT_RECORDED, Unread
from ncclcheck.probes.facts.machine.network import Resolver


class Limits(Struct, frozen=True, kw_only=True, tag="limits"):
    """A resource limit; -1 is unlimited. Source: getrlimit(2)."""

    soft: int
    hard: int


class Space(Struct, frozen=True, kw_only=True, tag="space"):
    """A file system's size and what is free for this user, bytes. Source: statvfs(3).

    inodes: how many it has; 0: no fixed number of them, or it was not recorded.
    """

    size: int
    free: int
    path: str = ""
    inodes: int = 0
    inodes_free: int = 0


class Resolution(Struct, frozen=True, kw_only=True, tag="resolution"):
    """What a name resolves to on this node, in the resolver's order."""

    name: str
    addresses: list[str]


class Host(Struct, frozen=True, kw_only=True, tag="host"):
    """The machine, and what this process may use of it.

    quota_path: the file of the CPU quota that leaves it less than the affinity mask does. ipc_lock: this process
    has CAP_IPC_LOCK of the machine itself, so that the memlock limit does not bind it. own_sources: who was asked
    for the own name, where no answer came in time. uptime_s: since the kernel was started.
    """

    hostname: str | Unread = NOT_RECORDED
    system: str | Unread = NOT_RECORDED
    kernel: str | Unread = NOT_RECORDED
    boot_id: str | Unread = NOT_RECORDED
    cores: int | Unread = NOT_RECORDED
    usable_cores: float | Unread = NOT_RECORDED
    quota_path: str | Unread = NOT_RECORDED
    memory: int | Unread = NOT_RECORDED
    memory_limit: int | Unread = NOT_RECORDED
    memory_available: int | Unread = NOT_RECORDED
    memlock: Limits | Unread = NOT_RECORDED
    ipc_lock: bool | Unread = NOT_RECORDED
    nofile: Limits | Unread = NOT_RECORDED
    shm: Space | Unread = NOT_RECORDED
    tmp: Space | Unread = NOT_RECORDED
    clocksource: str | Unread = NOT_RECORDED
    own_name: Resolution | Unread = NOT_RECORDED
    own_sources: Resolver | Unread = NOT_RECORDED
    uptime_s: float | Unread = NOT_RECORDED
