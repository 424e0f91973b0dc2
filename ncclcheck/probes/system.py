"""What the kernel and systemd were told: limits, ports, processors. All of it stands in files."""

from __future__ import annotations

from ncclcheck.probes import cgroup
from ncclcheck.probes.facts import Limits, PortRange, System, Unread
from ncclcheck.probes.host import limits_of, status_of
from ncclcheck.probes.machine import Machine

_PORTS = "/proc/sys/net/ipv4/ip_local_port_range"
_LOGIND = "/etc/systemd/logind.conf"
_YES, _NO = {"1", "yes", "y", "true", "t", "on"}, {"0", "no", "n", "false", "f", "off"}


def probe(machine: Machine) -> System:
    """Read them."""
    return System(
        uid=_uid(machine),
        stack=_soft(limits_of(machine, "Max stack size")),
        processes=_soft(limits_of(machine, "Max processes")),
        tasks=cgroup.tasks(machine) or Unread("absent", "no control group limits the number of processes"),
        ports=_ports(machine),
        remove_ipc=_remove_ipc(machine),
        cpu=_cpu(machine),
    )


def _uid(machine: Machine) -> int | Unread:
    text = status_of(machine, "Uid")
    if isinstance(text, Unread):
        return text
    first = (text.split() or [""])[0]
    return int(first) if first.isdecimal() and len(first) < 20 else Unread("broken", f"Uid is {text[:40]!r}")


def _soft(limit: Limits | Unread) -> int | Unread:
    return limit if isinstance(limit, Unread) else limit.soft


def _ports(machine: Machine) -> PortRange | Unread:
    text = machine.line(_PORTS)
    if isinstance(text, Unread):
        return text
    words = text.split()
    if len(words) == 2 and all(word.isdecimal() and len(word) < 6 for word in words):
        return PortRange(first=int(words[0]), last=int(words[1]))
    return Unread("broken", f"{_PORTS} holds {text[:40]!r}, not two ports")


def _remove_ipc(machine: Machine) -> bool | Unread:
    """The last line counts, and files of logind.conf.d come after the main one. Source: logind.conf(5)."""
    folder = f"{_LOGIND}.d"
    names = machine.names(folder)
    dropped = [] if isinstance(names, Unread) else [f"{folder}/{name}" for name in names if name.endswith(".conf")]
    said: bool | Unread = Unread("absent", "logind.conf does not mention RemoveIPC")
    for path in (_LOGIND, *dropped):
        text = machine.read(path)
        for line in "" if isinstance(text, Unread) else text.splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "RemoveIPC" and value.strip().lower() in _YES | _NO:
                said = value.strip().lower() in _YES
    return said


def _cpu(machine: Machine) -> str | Unread:
    """Vendor and model of the first processor; Arm names neither, only numbers."""
    text = machine.read("/proc/cpuinfo", 65536)
    if isinstance(text, Unread):
        return text
    first = text.split("\n\n", 1)[0]
    pairs = [line.partition(":") for line in first.splitlines()]
    values = {name.strip(): value.strip() for name, _, value in pairs}
    named = [values.get(key, "") for key in ("vendor_id", "model name")]
    numbers = [values.get(key, "") for key in ("CPU implementer", "CPU part")]
    words = " ".join(word for word in named if word) or " ".join(word for word in numbers if word)
    return words or Unread("absent", "/proc/cpuinfo names no processor")
