"""Errors of the NVIDIA driver (Xid) and of NVSwitches (SXid) in the kernel log."""

from __future__ import annotations

import re

from ncclcheck.probes.facts import Unread, Xid
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.health import kernel_log

_LINE = re.compile(
    r"(?:NVRM: |nvidia-nvswitch\d{1,3}: )(S?Xid) \(PCI:([0-9a-fA-F:.]{7,20})(?: GPU-C?I:\d{1,4}){0,2}\): "
    r"(\d{1,5})\b.*",
    re.ASCII,
)


def xids(machine: Machine) -> list[Xid] | Unread:
    """The last Xid of each number and GPU, and the last SXid of each number and NVSwitch."""
    lines = kernel_log.lines(machine)
    if isinstance(lines, Unread):
        return lines
    events: dict[tuple[str, str], Xid] = {}
    uptime = kernel_log.uptime(machine)
    for line in lines:
        if match := _LINE.search(line):
            key = (match[2].lower(), match[3])
            times = events[key].times + 1 if key in events else 1
            events[key] = Xid(
                name=f"{match[1]} {match[3]}", code=int(match[3]), pci=_pci(match[2]), line=match[0][:300],
                times=times, hours=kernel_log.hours(line, uptime),
            )  # fmt: skip
    return list(events.values())


def _pci(text: str) -> str:
    """`0000:9b:00` as sysfs writes it: a GPU is function 0 of its device."""
    text = text.lower()
    return text if "." in text else f"{text}.0"
