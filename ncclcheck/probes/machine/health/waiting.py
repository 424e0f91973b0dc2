"""Processes that wait in the kernel without a break (state D), as those of a dead file server or GPU do.

Every process that reads a disk is in this state now and then. So they are looked at several times: one counts when
it never left the state, by its count of context switches. Threads of the kernel are left out: some rest so.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from pathlib import Path

from ncclcheck.probes.facts import Unread, Waiting
from ncclcheck.probes.machine.access import Machine

_SECONDS = 2.0  # a disk that is merely busy answers sooner
_EVERY_S = 0.5  # between two looks: chosen, a process that reads a disk leaves state D within milliseconds
_MOST_PROCESSES = 32  # of those that are stuck: chosen, they wait for the same file server or GPU
_KERNEL_THREADS = "2"
_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE | re.ASCII)


def processes(machine: Machine) -> list[Waiting] | Unread:
    """Those that this user may see; in a container those of the container."""
    return machine.ask("waiting", list[Waiting], _processes)


def _processes() -> list[Waiting] | Unread:
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError as error:
        return Unread("denied", f"/proc: {error}")
    begun = time.monotonic()
    stuck = {pid: switches for pid in names if (switches := _switches(pid)) is not None}
    while stuck and time.monotonic() < begun + _SECONDS:
        time.sleep(_EVERY_S)
        stuck = {pid: switches for pid, switches in stuck.items() if _switches(pid) == switches}
    seconds = round(time.monotonic() - begun, 1)
    return [waiting for pid in list(stuck)[:_MOST_PROCESSES] if (waiting := _waiting(pid, seconds)) is not None]


def _switches(pid: str) -> tuple[str, ...] | None:
    """How often the scheduler took a process that is in state D now; None for every other one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        if stat[0] != "D" or stat[1] == _KERNEL_THREADS:
            return None
        return tuple(_SWITCHES.findall(Path(f"/proc/{pid}/status").read_text(errors="replace")))
    except (OSError, IndexError):
        return None


def _waiting(pid: str, seconds: float) -> Waiting | None:
    try:
        name = Path(f"/proc/{pid}/comm").read_text(errors="backslashreplace").strip()
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    try:
        wchan = Path(f"/proc/{pid}/wchan").read_text(errors="replace").strip("\0 \n")
    except OSError:
        wchan = ""
    return Waiting(name=name, pid=int(pid), seconds=seconds, user=_user(uid), wchan="" if wchan == "0" else wchan)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
