"""A second look at a node that fell silent: does a command run there, and what does its agent's process do?

The agent's own channel tells nothing once it is stopped or dead, or where it never began; another command does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ncclcheck.probes.facts import Look
from ncclcheck.probes.machine import process

# proc(5), stat: "PID (COMMAND) STATE ..."; COMMAND may hold anything, also a closing parenthesis.
_SCRIPT = (
    'if read -r line 2>/dev/null </proc/$1/stat; then echo "ncclcheck-stat $line"; '
    'echo "ncclcheck-wchan $(cat /proc/$1/wchan 2>/dev/null)"; else echo "ncclcheck-stat gone"; '
    'if dmesg >/dev/null 2>/dev/null; then echo "ncclcheck-oom $(dmesg | grep -c "Killed process $1 ")"; fi; fi'
)
_GO_ON = 'kill -CONT "$1"'
_LET_IN = re.compile(r"^Authenticated to ", re.MULTILINE)  # OpenSSH 6.2 to 10, LogLevel VERBOSE


def words(pid: int | None) -> list[str]:
    """The command that looks; without a process it only shows that it ran."""
    return ["/bin/sh", "-c", _SCRIPT, "sh", str(pid or 0)]


def go_on(pid: int) -> list[str]:
    """The command that lets a stopped agent go on, so that it sees the end of its channel and leaves."""
    return ["/bin/sh", "-c", _GO_ON, "sh", str(pid)]


def take(argv: Sequence[str], env: Mapping[str, str], pid: int | None, seconds: float) -> Look:
    """Run the command that brings `words` there, and read what came."""
    try:
        child = process.start(argv, env=env)
    except OSError:
        return Look(came="no")
    _, out, err = process.watch(child, seconds)
    match = re.search(r"^ncclcheck-stat (?:(gone)$|.*\) ([A-Za-z]) )", out, re.MULTILINE)
    if match is None:
        return Look(came="in" if _LET_IN.search(err) else "no")
    wchan = re.search(r"^ncclcheck-wchan (\w+)$", out, re.MULTILINE)
    oom = re.search(r"^ncclcheck-oom (\d+)$", out, re.MULTILINE)
    state = (match[1] or match[2]) if pid else ""
    return Look(
        came="ran",
        state=state,
        wchan=wchan[1] if wchan and wchan[1] != "0" else "",
        oom=oom[1] != "0" if oom else None,
    )
