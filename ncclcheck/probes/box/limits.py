"""Which limits of its own a process has used up, as it fails: what its exception does not say.

Standard library only, as the watcher.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ncclcheck.probes.box.processes import Process
from ncclcheck.probes.live.machine.proc import Proc, number, status

_NEARLY = 0.95  # of a limit: the failed attempt has given back what it took. Chosen
_ROOT = "/sys/fs/cgroup"


def used_up(proc: Proc, process: Process, all_alive: Iterable[Process]) -> list[str]:
    """In words, with the process's pid: processes of its cgroup, open files, address space, the size of a file."""
    pid, limits = str(process.pid), proc.text(str(process.pid), "limits")
    memory, who = status(proc, pid), f"process {process.pid}"
    texts: list[str] = []
    if full := _cgroup(proc, pid):
        below = _below(process.pid, [*all_alive])
        texts.append(
            f"{full}; {who} has {number(memory.get('Threads'))} threads and {below} processes that it started"
        )
    for name, used, words in (
        ("Max open files", len(proc.names(pid, "fd")), "open files (ulimit -n)"),
        ("Max address space", number(memory.get("VmPeak")) * 1024, "bytes of address space (ulimit -v)"),
    ):
        most = _limit(limits, name)
        if most and used >= _NEARLY * most:
            texts.append(f"{who} had {used} of at most {most} {words}")
    if size := _limit(limits, "Max file size"):
        texts.append(f"{who} may write no file of more than {size} bytes (ulimit -f)")
    return texts


def _limit(limits: str, name: str) -> int:
    """The soft one, 0 for none."""
    match = re.search(rf"^{name} +(\d+) ", limits, re.MULTILINE)
    return int(match[1]) if match else 0


def _cgroup(proc: Proc, pid: str) -> str:
    """Its cgroup, or one above it, that has as many processes and threads as it may."""
    for line in proc.text(pid, "cgroup").splitlines():
        _, kinds, path = (line + "::").split(":", 2)
        if kinds and "pids" not in kinds.split(","):
            continue
        parts = [part for part in path.removesuffix("::").split("/") if part]
        for depth in range(len(parts), 0, -1):
            folder = "/".join([_ROOT, *(["pids"] if kinds else []), *parts[:depth]])
            most, now = _text(f"{folder}/pids.max"), _text(f"{folder}/pids.current")
            if most.isdigit() and now.isdigit() and int(now) >= int(most) - 1:
                return f"the cgroup {'/'.join(parts[:depth])} has {now} of at most {most} processes and threads"
    return ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return ""


def _below(pid: int, alive: list[Process]) -> int:
    """All that descend from it."""
    own = {pid}
    for process in sorted(alive, key=lambda child: child.born):
        if process.parent in own:
            own.add(process.pid)
    return len(own) - 1
