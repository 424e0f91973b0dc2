"""A second look at a node that fell silent: does a command run there, and what does its agent's process do?

The agent's own channel tells nothing once it is stopped or dead, or where it never began; another command does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ncclcheck.probes.facts import Look
from ncclcheck.probes.facts.guard.secrets import masked
from ncclcheck.probes.machine import process

# proc(5), stat: "PID (COMMAND) STATE ..."; COMMAND may hold anything, also a closing parenthesis.
_SCRIPT = (
    'if read -r line 2>/dev/null </proc/$1/stat; then echo "ncclcheck-stat $line"; '
    'echo "ncclcheck-wchan $(cat /proc/$1/wchan 2>/dev/null)"; else echo "ncclcheck-stat gone"; '
    'if dmesg >/dev/null 2>/dev/null; then echo "ncclcheck-oom $(dmesg | grep -c "Killed process $1 ")"; fi; fi'
)
# Of an agent that never spoke: what holds up its start. No backslash: it would not cross every shell (doorstep).
# Folders come last, each tried by a process that is killed where it hangs.
_AT_START = (
    'sed -n "s/^/ncclcheck-limit /p" /proc/self/limits 2>/dev/null; '
    "for f in /proc/$1/fd/*; do case $f in */0|*/1|*/2) ;; "
    '*) echo "ncclcheck-file $(readlink "$f" 2>/dev/null)";; esac; done; '
    "for c in $(cat /proc/$1/task/$1/children 2>/dev/null); do "
    'echo "ncclcheck-child $(xargs -0 </proc/$c/cmdline 2>/dev/null)"; done; '
    'while read -r a b c d m rest; do t="${rest#* - }"; t="${t%% *}"; case $t in '
    'nfs|nfs4|cifs|smb3|lustre|ceph|gpfs|beegfs|9p|fuse.*) echo "ncclcheck-mount $t $m";; esac; '
    "done </proc/self/mountinfo 2>/dev/null; "
    "for v in PYTHONPATH LD_LIBRARY_PATH PYTHONHOME HOME; do "
    'p="$(xargs -0 -n1 </proc/$1/environ 2>/dev/null | sed -n "s/^$v=//p")"; IFS=:; '
    'for d in $p; do timeout -s KILL 1 test -d "$d"; [ $? = 137 ] && echo "ncclcheck-hangs $v $d" && exit; '
    'for n in sitecustomize usercustomize; do [ -e "$d/$n.py" ] && echo "ncclcheck-custom $d/$n.py"; done; '
    "done; unset IFS; done"
)
_GO_ON = 'kill -CONT "$1"'
_END = (
    'case "$(xargs -0 </proc/$1/cmdline)" in *ncclcheck*) kill -KILL "$1" $(cat /proc/$1/task/$1/children);; esac'
)
_USUAL = {
    "Max stack size": 2**20, "Max address space": 2**31, "Max data size": 2**31, "Max file size": 2**20,
    "Max open files": 64, "Max processes": 64, "Max cpu time": 60,
}  # fmt: skip
_LIMIT = re.compile(r"^ncclcheck-limit (Max [a-z ]+?)  +(\d+) ", re.MULTILINE)
_MOST = 8  # lines of a kind that are kept
_LET_IN = re.compile(r"^Authenticated to ", re.MULTILINE)  # OpenSSH 6.2 to 10, LogLevel VERBOSE


def words(pid: int | None, *, begun: bool = True) -> list[str]:
    """The command that looks; without a process it only shows that it ran. begun: its agent has spoken."""
    return ["/bin/sh", "-c", _SCRIPT if begun else f"{_SCRIPT}; {_AT_START}", "sh", str(pid or 0)]


def end(pid: int) -> list[str]:
    """The command that ends an agent that never spoke, and what it started, if the number is still its own."""
    return ["/bin/sh", "-c", _END, "sh", str(pid)]


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
    wchan = re.search(r"^ncclcheck-wchan ([\w.]+)$", out, re.MULTILINE)
    oom = re.search(r"^ncclcheck-oom (\d+)$", out, re.MULTILINE)
    state = (match[1] or match[2]) if pid else ""
    return Look(
        came="ran",
        state=state,
        wchan=wchan[1] if wchan and wchan[1] != "0" else "",
        oom=oom[1] != "0" if oom else None,
        files=_each("file", out),
        children=_each("child", out),
        hangs=next(iter(_each("hangs", out)), ""),
        custom=_each("custom", out),
        tight=[f"{name[4:]} {value}" for name, value in _LIMIT.findall(out) if int(value) < _USUAL.get(name, 0)],
        mounts=_each("mount", out),
    )


def _each(kind: str, out: str) -> list[str]:
    lines = re.findall(rf"^ncclcheck-{kind} (.+)$", out, re.MULTILINE)
    return [masked(line.strip())[:200] for line in dict.fromkeys(lines)][:_MOST]
