"""Whether memory is short: swap, pressure stall information, and what the kernel has promised.

Source: proc_meminfo(5), the kernel's pages accounting/psi and mm/overcommit-accounting.
"""

from __future__ import annotations

import re

from ncclcheck.probes.facts import Commit, Pressure, Swap, Unread
from ncclcheck.probes.machine.access import Machine

_PSI = re.compile(r"^(some|full) .*\bavg300=(\d{1,3}\.\d{1,4})", re.MULTILINE | re.ASCII)


def swap(machine: Machine) -> Swap | Unread:
    """Of the machine; a control group may allow less."""
    amounts = _meminfo(machine, "SwapTotal", "SwapFree")
    if isinstance(amounts, Unread):
        return amounts
    return Swap(total=amounts[0], used=max(0, amounts[0] - amounts[1]))


def memory(machine: Machine) -> Pressure | Unread:
    """Of the machine, the mean of five minutes."""
    text = machine.read("/proc/pressure/memory")
    if isinstance(text, Unread):  # a kernel that was started with psi=0 has the file and refuses to read it
        return Unread("absent", text.why) if text.kind == "broken" else text
    shares = {name: float(value) for name, value in _PSI.findall(text)}
    if len(shares) < 2:
        return Unread("absent", "/proc/pressure/memory holds no averages")
    return Pressure(some=shares["some"], full=shares["full"])


def commit(machine: Machine) -> Commit | Unread:
    """The mode, the limit that mode 2 holds to, and what is promised."""
    mode = machine.number("/proc/sys/vm/overcommit_memory")
    if isinstance(mode, Unread):
        return mode
    amounts = _meminfo(machine, "CommitLimit", "Committed_AS")
    return amounts if isinstance(amounts, Unread) else Commit(mode=mode, limit=amounts[0], used=amounts[1])


def _meminfo(machine: Machine, *names: str) -> list[int] | Unread:
    text = machine.read("/proc/meminfo")
    if isinstance(text, Unread):
        return text
    amounts = dict(re.findall(r"^(\w+):\s+(\d{1,15}) kB", text, re.MULTILINE | re.ASCII))
    if missing := [name for name in names if name not in amounts]:
        return Unread("absent", f"/proc/meminfo has no line {missing[0]}")
    return [int(amounts[name]) * 1024 for name in names]
