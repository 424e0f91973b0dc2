"""What the kernel counts and says of a node: processes killed for want of memory, messages of its log."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress

_TELLING = re.compile(
    rb"out of memory|oom|killed process|segfault|general protection|NVRM|Xid|mlx\d|ib_|I/O error|EXT4-fs error"
    rb"|XFS|nfs: server|blocked for more than|MCE|Hardware Error|link (?:is )?down|AER",
    re.IGNORECASE,
)
_MOST_AT_ONCE = 200  # messages of one look; a storm of them says the same thing


def cgroups_of(pid: int) -> list[str]:
    """The folders of a process's memory cgroup and of those above it, as they are seen here."""
    folders: list[str] = []
    for line in _text(f"/proc/{pid}/cgroup").splitlines():
        _, kinds, path = (line + "::").split(":", 2)
        path = path.removesuffix("::")
        if kinds and "memory" not in kinds.split(","):
            continue
        root = "/sys/fs/cgroup/memory" if kinds else "/sys/fs/cgroup"
        parts = [part for part in path.split("/") if part]
        folders += ["/".join([root, *parts[:depth]]) for depth in range(len(parts), -1, -1)]
    return folders


def oom_kills(folders: Iterable[str]) -> dict[str, int]:
    """How many processes the kernel has killed for want of memory, by cgroup; `node` for all of them."""
    counted: dict[str, int] = {}
    for folder in folders:
        for name in ("memory.events.local", "memory.events", "memory.oom_control"):
            if match := re.search(r"^oom_kill (\d+)$", _text(f"{folder}/{name}"), re.MULTILINE):
                counted[folder] = int(match[1])
                break
    if match := re.search(r"^oom_kill (\d+)$", _text("/proc/vmstat"), re.MULTILINE):
        counted["node"] = int(match[1])
    return counted


def memory_of(folders: Iterable[str]) -> tuple[int, int] | None:
    """Bytes used and allowed, of the first of these cgroups that has a limit."""
    for folder in folders:
        for used, limit in (("memory.current", "memory.max"), ("memory.usage_in_bytes", "memory.limit_in_bytes")):
            most, now = _text(f"{folder}/{limit}").strip(), _text(f"{folder}/{used}").strip()
            if most.isdigit() and now.isdigit() and int(most) < 2**60:
                return int(now), int(most)
    return None


def node() -> list[int]:
    """Ticks of all cores in use, ticks taken by the hypervisor, pages read from swap: since the node started."""
    row = [int(word) for word in _text("/proc/stat").split("\n", 1)[0].split()[1:9]]
    user, nice, system, _, _, irq, softirq, steal = row if len(row) == 8 else [0] * 8
    match = re.search(r"^pswpin (\d+)$", _text("/proc/vmstat"), re.MULTILINE)
    return [user + nice + system + irq + softirq, steal, int(match[1]) if match else 0]


def throttled(folders: Iterable[str]) -> int:
    """Microseconds for which the CPU limits of these cgroups held their processes back."""
    total = 0
    for folder in folders:
        text = _text(f"{folder.replace('/sys/fs/cgroup/memory', '/sys/fs/cgroup/cpu')}/cpu.stat")
        if match := re.search(r"^throttled_(usec|time) (\d+)$", text, re.MULTILINE):
            total += int(match[2]) // (1 if match[1] == "usec" else 1000)
    return total


class Messages:
    """New messages of the kernel's log, where it may be read."""

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):
            self._file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)

    @property
    def readable(self) -> bool:
        """Whether they can be seen at all."""
        return self._file >= 0

    def new(self) -> list[str]:
        """Those since the last call that tell something of a node's hardware, memory or storage."""
        lines: list[str] = []
        for _ in range(_MOST_AT_ONCE if self.readable else 0):
            try:
                record = os.read(self._file, 8192)
            except BrokenPipeError:  # some were lost: the next read goes on behind them
                continue
            except OSError:
                break
            text = record.partition(b";")[2].split(b"\n")[0]
            if _TELLING.search(text):
                lines.append(text[:300].decode(errors="backslashreplace"))
        return lines


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(65536).decode(errors="replace")
    except OSError:
        return ""
