"""The machine, and what this process may use of it.

Nearly all of it stands in files: /proc/self/limits and /proc/self/status rather than system calls, so that a
recorded tree holds them. What cannot be read there is asked for under these names (DIR/.ncclcheck/NAME.json):

    shm        Space of /dev/shm, statvfs(3)
    tmp        Space of the directory for temporary files
    own_name   Resolution of the own host name, getaddrinfo(3)
    own_sources  Resolver: who was asked for it, where no answer came in time
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from ncclcheck.probes.facts import Host, Limits, Resolution, Resolver, Space, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.health import kernel_log
from ncclcheck.probes.machine.host import cgroup
from ncclcheck.probes.machine.net.resolver import resolver

T = TypeVar("T")

_CAP_IPC_LOCK = 14  # the bit of the capability. Source: linux/capability.h
_LONGEST_ANSWER = 5.0  # the resolver's own timeout for one try of one name server (resolv.conf(5), 5 s)
_CLOCKSOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"


def probe(machine: Machine) -> Host:
    """Everything about the host but its devices."""
    hostname = machine.line("/proc/sys/kernel/hostname")
    cores = _cores(machine)
    own_name = machine.ask("own_name", Resolution, lambda: _own_name(hostname))
    return Host(
        hostname=hostname,
        system=_system(machine),
        kernel=machine.line("/proc/sys/kernel/osrelease"),
        boot_id=machine.line("/proc/sys/kernel/random/boot_id"),
        cores=cores,
        usable_cores=_usable_cores(machine, cores),
        quota_path=_quota_path(machine, cores),
        memory=_meminfo(machine, "MemTotal"),
        memory_limit=cgroup.memory(machine) or Unread("absent", "no control group limits memory"),
        memory_available=_meminfo(machine, "MemAvailable"),
        memlock=limits_of(machine, "Max locked memory"),
        ipc_lock=_ipc_lock(machine),
        nofile=limits_of(machine, "Max open files"),
        shm=machine.ask("shm", Space, lambda: _space(machine, "/dev/shm")),
        tmp=machine.ask("tmp", Space, lambda: _space(machine, _temporary())),
        clocksource=machine.line(_CLOCKSOURCE),
        own_name=own_name,
        own_sources=_own_sources(machine, hostname, own_name),
        uptime_s=kernel_log.uptime(machine),
    )


def _system(machine: Machine) -> str | Unread:
    text = machine.read("/etc/os-release")
    if isinstance(text, Unread):
        return text
    names = [line.partition("=")[2] for line in text.splitlines() if line.startswith("PRETTY_NAME=")]
    return names[0].strip("\"'") if names else Unread("absent", "/etc/os-release has no PRETTY_NAME")


def _cores(machine: Machine) -> int | Unread:
    text = machine.line("/sys/devices/system/cpu/online")
    return text if isinstance(text, Unread) else _count(text, "/sys/devices/system/cpu/online")


def _usable_cores(machine: Machine, cores: int | Unread) -> float | Unread:
    """The smaller of the affinity mask and the CPU quota."""
    mask, quota = _mask(machine, cores), cgroup.cores(machine)
    return mask if isinstance(mask, Unread) or quota is None else min(mask, quota[0])


def _quota_path(machine: Machine, cores: int | Unread) -> str | Unread:
    """The file of the CPU quota, where it leaves less than the affinity mask."""
    mask, quota = _mask(machine, cores), cgroup.cores(machine)
    if quota is None or (not isinstance(mask, Unread) and mask <= quota[0]):
        return Unread("absent", "no control group limits CPU time further")
    return quota[1]


def _mask(machine: Machine, cores: int | Unread) -> float | Unread:
    allowed = status_of(machine, "Cpus_allowed_list")
    mine = cores if isinstance(allowed, Unread) else _count(allowed, "Cpus_allowed_list")
    if isinstance(mine, Unread):
        return mine
    # The mask also has the cores that a board could hold, so that it may be wider than what is there.
    return float(mine if isinstance(cores, Unread) else min(mine, cores))


def _count(text: str, source: str) -> int | Unread:
    """How many cores a list such as 0-3,8 has."""
    try:
        spans = [piece.partition("-") for piece in text.split(",")]
        total = sum(int(last or first) - int(first) + 1 for first, _, last in spans)
    except ValueError:
        total = 0
    return total if 0 < total < 2**20 else Unread("broken", f"{source} holds {text[:40]!r}, not a list of cores")


def _meminfo(machine: Machine, name: str) -> int | Unread:
    text = machine.read("/proc/meminfo")
    return text if isinstance(text, Unread) else _kib(text, name)


def _kib(text: str, name: str) -> int | Unread:
    for line in text.splitlines():
        words = line.split()
        if words[:1] == [f"{name}:"] and len(words) > 1 and words[1].isdecimal() and len(words[1]) < 16:
            return int(words[1]) * 1024
    return Unread("broken", f"/proc/meminfo has no line {name}")


def limits_of(machine: Machine, name: str) -> Limits | Unread:
    text = machine.read("/proc/self/limits")
    if isinstance(text, Unread):
        return text
    for line in text.splitlines():
        if line.startswith(name):
            words = line[len(name) :].split()
            soft, hard = (_limit(word) for word in (*words, "", "")[:2])
            if soft is not None and hard is not None:
                return Limits(soft=soft, hard=hard)
    return Unread("broken", f"/proc/self/limits has no line {name}")


def _limit(word: str) -> int | None:
    if word == "unlimited":
        return -1
    return int(word) if word.isdecimal() and len(word) < 20 else None


def _ipc_lock(machine: Machine) -> bool | Unread:
    """Whether the kernel lets this process lock any amount of memory. Source: capabilities(7).

    The capability counts only in the machine's own user namespace, the one that maps all ids.
    """
    mask = status_of(machine, "CapEff")
    if isinstance(mask, Unread):
        return mask
    try:
        has = bool(int(mask, 16) >> _CAP_IPC_LOCK & 1)
    except ValueError:
        return Unread("broken", f"/proc/self/status holds CapEff {mask[:40]!r}")
    mapping = machine.line("/proc/self/uid_map")
    return has and (isinstance(mapping, Unread) or mapping.split() == ["0", "0", "4294967295"])


def status_of(machine: Machine, name: str) -> str | Unread:
    text = machine.read("/proc/self/status")
    if isinstance(text, Unread):
        return text
    values = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(f"{name}:")]
    return values[0] if values else Unread("absent", f"/proc/self/status has no line {name}")


def _temporary() -> str:
    """The directory that Python's tempfile would take, without its habit of writing there to try."""
    named = [os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")]
    usable = (path for path in named if path and os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK))
    return next(map(os.path.abspath, usable), "/tmp")


def _space(machine: Machine, path: str) -> Space | Unread:
    """Size and room of a file system; one on a dead file server would wait for ever."""
    return within(_LONGEST_ANSWER, f"statvfs({path})", lambda: _statvfs(machine, path))


def _statvfs(machine: Machine, path: str) -> Space | Unread:
    try:
        status = os.statvfs(machine.path(path))
    except FileNotFoundError:
        return Unread("absent", f"there is no {path}")
    return Space(
        size=status.f_blocks * status.f_frsize,
        free=status.f_bavail * status.f_frsize,
        path=path,
        inodes=status.f_files,
        inodes_free=status.f_favail,
    )


def _own_name(hostname: str | Unread) -> Resolution | Unread:
    if isinstance(hostname, Unread):
        return hostname
    return resolved(hostname)


def _own_sources(machine: Machine, hostname: str | Unread, own_name: Resolution | Unread) -> Resolver | Unread:
    """Asked where nothing else tells why it takes so long, or why there is no address."""
    asked = own_name.kind == "timed_out" if isinstance(own_name, Unread) else not own_name.addresses
    if isinstance(hostname, Unread) or not asked:
        return Unread("absent", "its own name has an address")
    return machine.ask("own_sources", Resolver, lambda: resolver(hostname, [], _LONGEST_ANSWER))


def resolved(name: str) -> Resolution | Unread:
    """What a name resolves to on this node; a name server that does not answer is not waited for."""
    return within(_LONGEST_ANSWER, f"getaddrinfo({name})", lambda: _resolve(name))


def _resolve(name: str) -> Resolution:
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return Resolution(name=name, addresses=[])
    addresses = [str(sockaddr[0]).partition("%")[0] for *_, sockaddr in answers]
    return Resolution(name=name, addresses=list(dict.fromkeys(addresses)))


def within(seconds: float, what: str, call: Callable[[], T | Unread]) -> T | Unread:
    """The answer of a call that may wait in the kernel or for a name server; nobody waits for the late one."""
    answers: list[T | Unread] = []

    def ask() -> None:
        try:
            answers.append(call())
        except Exception as error:
            answers.append(Unread("broken", f"{what}: {error}"))

    asking = threading.Thread(target=ask, daemon=True, name=what)
    asking.start()
    asking.join(seconds)
    return answers[0] if answers else Unread("timed_out", f"{what} gave no answer in {seconds:g} s")
