"""Processes and threads of one user on this host: what RLIMIT_NPROC counts. Source: getrlimit(2), proc(5)."""

from __future__ import annotations

import errno
import os
import re
import resource
from pathlib import Path

from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import cgroup

# Bytes of RLIMIT_AS or RLIMIT_DATA below which a thread is refused for want of memory. Reasoned, not measured:
# torch's libraries alone take some 440 MiB, and each thread's stack reserves 8 MiB of addresses.
_TIGHT = 512 * 2**20

_UID = re.compile(rb"^Uid:\t(\d+)", re.MULTILINE)
_THREADS = re.compile(rb"^Threads:\t(\d+)", re.MULTILINE)


def of_user(uid: int) -> int:
    """How many there are now; those in other containers, which may not be seen, count for the kernel as well."""
    return sum(_threads(name, uid) for name in os.listdir("/proc") if name.isdigit())


def _threads(pid: str, uid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:  # it has ended
        return 0
    whose, threads = _UID.search(status), _THREADS.search(status)
    return int(threads[1]) if whose and threads and int(whose[1]) == uid else 0


def _no_room_for_a_stack() -> str:
    """The kernel gives the same error where a thread's stack does not fit."""
    for name, letter in (("RLIMIT_AS", "v"), ("RLIMIT_DATA", "d")):
        limit, _ = resource.getrlimit(getattr(resource, name))
        if 0 <= limit < _TIGHT:
            return f"no memory for a further thread: {name} (ulimit -{letter}) allows {limit} bytes"
    return ""


def exhausted(error: BaseException) -> str:
    """What a person should know where a thread or process could not be started; empty for any other error."""
    refused = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    if not refused and not (isinstance(error, OSError) and error.errno == errno.EAGAIN):
        return ""
    if reason := _no_room_for_a_stack():
        return reason
    limit, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    uid = os.getuid()
    if limit == resource.RLIM_INFINITY or uid == 0:  # which does not bind root
        group = cgroup.tasks(Machine())
        allowed = "see pids.max of the control group" if group is None else f"pids.max allows {group}"
        return f"no further thread or process may be started here: {allowed}"
    remedy = "have its hard limit raised" if hard == limit else f"ulimit -u {'unlimited' if hard == -1 else hard}"
    return (
        f"no further thread or process may be started: user {uid} has {of_user(uid)} on this host, and "
        f"RLIMIT_NPROC (ulimit -u) allows {limit}; raise it: {remedy}"
    )
