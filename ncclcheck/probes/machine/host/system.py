"""What the kernel and systemd were told: limits, ports, processors.

All of it stands in files, but for the recorded name `tasks_used`: how many processes and threads this user has.
"""

from __future__ import annotations

import re

from ncclcheck.probes.facts import Limits, PortRange, System, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import cgroup, tasks
from ncclcheck.probes.machine.host.host import limits_of, status_of

_SOMAXCONN = "/proc/sys/net/core/somaxconn"
_PORTS = "/proc/sys/net/ipv4/ip_local_port_range"
_RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"
_LOGIND = "/etc/systemd/logind.conf"
_YES, _NO = {"1", "yes", "y", "true", "t", "on"}, {"0", "no", "n", "false", "f", "off"}


def probe(machine: Machine) -> System:
    """This user's limits and settings of the system; each an Unread where it was not read."""
    uid, processes = _uid(machine), _soft(limits_of(machine, "Max processes"))
    return System(
        uid=uid,
        stack=_soft(limits_of(machine, "Max stack size")),
        processes=processes,
        address_space=_soft(limits_of(machine, "Max address space")),
        data=_if_told(limits_of(machine, "Max data size")),
        file_size=_soft(limits_of(machine, "Max file size")),
        cpu_seconds=_if_told(limits_of(machine, "Max cpu time")),
        tasks=cgroup.tasks(machine) or Unread("absent", "no control group limits the number of processes"),
        tasks_used=_tasks_used(machine, uid, processes),
        ports=port_range(machine),
        tcp_rmem=_most(machine, "tcp_rmem"),
        tcp_wmem=_most(machine, "tcp_wmem"),
        somaxconn=_number(machine, _SOMAXCONN),
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


def _if_told(limit: Limits | Unread) -> int | Unread:
    """Recordings hold only the limits that were asked for when they were made."""
    if isinstance(limit, Unread) and limit.kind == "broken":
        return Unread("absent", limit.why)
    return _soft(limit)


def _tasks_used(machine: Machine, uid: int | Unread, limit: int | Unread) -> int | Unread:
    if isinstance(uid, Unread) or uid == 0 or limit == -1:
        return Unread("absent", "the number of this user's processes is not limited")
    return machine.ask("tasks_used", int, lambda: tasks.of_user(uid))


def port_range(machine: Machine) -> PortRange | Unread:
    """The ports that the kernel gives to who asks for any."""
    text = machine.line(_PORTS)
    if isinstance(text, Unread):
        return text
    words = text.split()
    if len(words) == 2 and all(word.isdecimal() and len(word) < 6 for word in words):
        first, last = int(words[0]), int(words[1])
        return PortRange(first=first, last=last, reserved=_reserved(machine.read(_RESERVED), first, last))
    return Unread("broken", f"{_PORTS} holds {text[:40]!r}, not two ports")


def _reserved(text: str | Unread, first: int, last: int) -> int:
    """How many ports of a range a list like `8080,9148-9200` holds, which the kernel writes without overlap."""
    count = 0
    for part in re.findall(r"[0-9]+(?:-[0-9]+)?", "" if isinstance(text, Unread) else text):
        low, _, high = part.partition("-")
        count += max(0, min(last, int(high or low)) - max(first, int(low)) + 1)
    return count


def _number(machine: Machine, path: str) -> int | Unread:
    text = machine.line(path)
    if isinstance(text, Unread) or (text.isdecimal() and len(text) < 20):
        return text if isinstance(text, Unread) else int(text)
    return Unread("broken", f"{path} holds {text[:40]!r}, no number")


def _most(machine: Machine, name: str) -> int | Unread:
    """The last of the least, the usual and the most bytes of a TCP socket's buffer."""
    path = f"/proc/sys/net/ipv4/{name}"
    text = machine.line(path)
    if isinstance(text, Unread):
        return text
    words = text.split()
    if len(words) == 3 and all(word.isdecimal() and len(word) < 16 for word in words):
        return int(words[2])
    return Unread("broken", f"{path} holds {text[:40]!r}, not three numbers")


def _remove_ipc(machine: Machine) -> bool | Unread:
    """The last line counts, and files of logind.conf.d come after the main one. Source: logind.conf(5)."""
    folder = f"{_LOGIND}.d"
    names = machine.names(folder)
    dropped = [] if isinstance(names, Unread) else [f"{folder}/{name}" for name in names if name.endswith(".conf")]
    setting: bool | Unread = Unread("absent", "logind.conf does not mention RemoveIPC")
    for path in (_LOGIND, *dropped):
        text = machine.read(path)
        for line in "" if isinstance(text, Unread) else text.splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "RemoveIPC" and value.strip().lower() in _YES | _NO:
                setting = value.strip().lower() in _YES
    return setting


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
