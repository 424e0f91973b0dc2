"""Memory errors as EDAC counts them, and the kernel's own words about failing hardware and stuck tasks.

Source: the kernel's ABI page sysfs-devices-edac and its page admin-guide/RAS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import KernelEvent, MemoryModule, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.health import kernel_log

_FOLDER = "/sys/devices/system/edac/mc"
_CONTROLLER = re.compile(r"mc\d{1,4}", re.ASCII)
_MODULE = re.compile(r"(?:dimm|rank)\d{1,4}", re.ASCII)
_EVENTS = (
    ("uncorrected hardware error", re.compile(
        r"\[Hardware Error\]:.{0,80}(?:Uncorrected|[Uu]ncorrectable|severity: (?:recoverable|fatal)\b)"
        r"|EDAC \S+: \d+ UE\b|Memory failure: 0x[0-9a-f]+:", re.ASCII)),
    ("hung task", re.compile(r"task \S{1,40} blocked for more than \d{1,6} seconds", re.ASCII)),
    ("file system given up", re.compile(
        r"[Rr]emounting filesystem read-only|forced readonly|[Ff]ilesystem has been shut down", re.ASCII)),
    ("disk error", re.compile(r"I/O error, dev (?:nvme|sd|vd)\w{1,20}\b", re.ASCII)),
)  # fmt: skip


def memory(machine: Machine) -> list[MemoryModule] | Unread:
    """Every DIMM; of a controller that knows none, what the controller itself has counted."""
    names = machine.names(_FOLDER)
    if isinstance(names, Unread):
        return names
    controllers = [name for name in names if _CONTROLLER.fullmatch(name)]
    if not controllers:
        return Unread("absent", "no EDAC driver counts the memory errors of this machine")
    return [module for name in controllers for module in _modules(machine, name)]


def _modules(machine: Machine, controller: str) -> Iterator[MemoryModule]:
    folder = f"{_FOLDER}/{controller}"
    names = machine.names(folder)
    modules = [name for name in ([] if isinstance(names, Unread) else names) if _MODULE.fullmatch(name)]
    for name in modules:
        yield from _module(machine, f"{folder}/{name}", f"{controller}/{name}", "dimm_")
    if not modules:
        yield from _module(machine, folder, controller, "")


def _module(machine: Machine, folder: str, name: str, prefix: str) -> Iterator[MemoryModule]:
    counts = [machine.number(f"{folder}/{prefix}{kind}_count") for kind in ("ce", "ue")]
    label = machine.line(f"{folder}/dimm_label") if prefix else ""
    corrected, uncorrected = counts
    if not isinstance(corrected, Unread) and not isinstance(uncorrected, Unread):
        shown = "" if isinstance(label, Unread) else label[:80]
        yield MemoryModule(name=name, corrected=corrected, uncorrected=uncorrected, label=shown)


def kernel(machine: Machine) -> list[KernelEvent] | Unread:
    """Each kind of trouble in the kernel log, with its last line."""
    lines = kernel_log.lines(machine)
    if isinstance(lines, Unread):
        return lines
    up = kernel_log.uptime(machine)
    events: dict[str, KernelEvent] = {}
    for line in lines:
        for name, pattern in _EVENTS:
            if match := pattern.search(line):
                times = events[name].times + 1 if name in events else 1
                text = line[match.start() : match.start() + 200].strip()
                events[name] = KernelEvent(name=name, times=times, line=text, hours=kernel_log.hours(line, up))
    return list(events.values())
