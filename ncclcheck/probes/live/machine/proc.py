"""Files of /proc, below any root.

A part of the streamed probe: standard library only, Python 3.6.
"""

import os
import re
from typing import Any, Dict, List, Optional

TICKS = float(os.sysconf("SC_CLK_TCK"))

Raw = Dict[str, Any]


class Proc:
    """Files of /proc below a root; what cannot be read is empty."""

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.join(root, "proc")
        self.live = root == "/"

    def text(self, *parts: str) -> str:
        """At most a mebibyte of one file."""
        try:
            with open(os.path.join(self.root, *parts), "rb") as file:
                return file.read(2**20).decode(errors="replace")
        except (OSError, ValueError):
            return ""

    def names(self, *parts: str) -> List[str]:
        """The names in a directory."""
        try:
            return os.listdir(os.path.join(self.root, *parts))
        except OSError:
            return []

    def link(self, *parts: str) -> str:
        """Where a link leads, without going there: what is behind may not answer."""
        try:
            return os.readlink(os.path.join(self.root, *parts))
        except OSError:
            return ""


def fields(stat: str) -> List[str]:
    """The fields of /proc/PID/stat from the state on; the name before it may hold anything."""
    return (stat.rpartition(")")[2].split() + [""] * 50)[:50]


def status(proc: Proc, pid: str) -> Dict[str, str]:
    """/proc/PID/status."""
    return {
        key: value.strip()
        for key, _, value in (line.partition(":") for line in proc.text(pid, "status").splitlines())
    }


def age(proc: Proc, pid: str) -> float:
    """Seconds since it was started."""
    up, begun = proc.text("uptime").split(), fields(proc.text(pid, "stat"))[19]
    return max(0.0, float(up[0]) - int(begun) / TICKS) if up and begun else 0.0


def number(text: Optional[str]) -> int:
    """The first number in a text, or 0."""
    match = re.search(r"\d+", text or "")
    return int(match.group()) if match else 0
