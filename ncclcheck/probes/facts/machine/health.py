"""Signs of a machine that fails or is overloaded: memory errors, stuck processes and mounts, disks."""

from __future__ import annotations

from msgspec import Struct

from ncclcheck.probes.facts.guard.unread import NOT_RECORDED, Unread
from ncclcheck.probes.facts.machine.fabric import PcieLink
from ncclcheck.probes.facts.machine.place import Mount


class MemoryModule(Struct, frozen=True, kw_only=True):
    """Errors of one DIMM of the host since the driver was loaded. name: controller and DIMM; label: its slot."""

    name: str
    corrected: int
    uncorrected: int
    label: str = ""


class KernelEvent(Struct, frozen=True, kw_only=True):
    """A kind of trouble in the kernel log: how often, the last line, and how many hours ago that was."""

    name: str
    times: int
    line: str
    hours: float | Unread = NOT_RECORDED


class Waiting(Struct, frozen=True, kw_only=True):
    """A process that stayed in state D for so many seconds, without a break. wchan: where in the kernel."""

    name: str
    pid: int
    seconds: float
    user: str
    wchan: str = ""


class Swap(Struct, frozen=True, kw_only=True, tag="swap"):
    """Bytes of swap space, and those in use."""

    total: int
    used: int


class Pressure(Struct, frozen=True, kw_only=True, tag="pressure"):
    """Percent of the last five minutes in which some tasks, or all, waited for memory. Source: PSI."""

    some: float
    full: float


class Commit(Struct, frozen=True, kw_only=True, tag="commit"):
    """vm.overcommit_memory, and the bytes that may be and are promised (CommitLimit, Committed_AS)."""

    mode: int
    limit: int
    used: int


class Nvme(Struct, frozen=True, kw_only=True):
    """An NVMe controller on PCIe. state: live where it works."""

    name: str
    state: str | Unread = NOT_RECORDED
    model: str | Unread = NOT_RECORDED
    link: PcieLink | Unread = NOT_RECORDED


class FileSystemAnswer(Struct, frozen=True, kw_only=True):
    """Whether a network file system answered. name: its mount point. error: of stat(2). late: it said nothing."""

    name: str
    kind: str
    source: str
    error: str = ""
    late: bool = False


class Health(Struct, frozen=True, kw_only=True, tag="health"):
    """Signs that this machine is failing or overloaded.

    disks: mounted file systems of disks. answers: of network file systems, each source once.
    """

    memory_errors: list[MemoryModule] | Unread = NOT_RECORDED
    kernel: list[KernelEvent] | Unread = NOT_RECORDED
    waiting: list[Waiting] | Unread = NOT_RECORDED
    swap: Swap | Unread = NOT_RECORDED
    pressure: Pressure | Unread = NOT_RECORDED
    commit: Commit | Unread = NOT_RECORDED
    nvmes: list[Nvme] | Unread = NOT_RECORDED
    disks: list[Mount] | Unread = NOT_RECORDED
    answers: list[FileSystemAnswer] | Unread = NOT_RECORDED
