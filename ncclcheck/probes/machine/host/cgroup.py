"""The control groups of this process, version 1 and 2: Machine -> limits of cores, bytes and tasks; counters."""

from __future__ import annotations

import posixpath

from ncclcheck.probes.facts import Unread
from ncclcheck.probes.machine.access import Machine

_TOP = "/sys/fs/cgroup"
_NO_LIMIT = 2**60  # version 1 writes "no limit" as a number of this size


def cores(machine: Machine) -> tuple[float, str] | None:
    """The smallest CPU quota of this process's group and those above it, and its file; None: there is none."""
    quotas = [(_quota(machine.line(path)), path) for path in (f"{f}/cpu.max" for f in _folders(machine, ""))]
    for folder in _folders(machine, "cpu"):
        used, period = (machine.line(f"{folder}/cpu.cfs_{word}_us") for word in ("quota", "period"))
        quotas.append((_quota(f"{used} {period}"), f"{folder}/cpu.cfs_quota_us"))
    return min(((quota, path) for quota, path in quotas if quota is not None), default=None)


def memory(machine: Machine) -> int | None:
    """The smallest memory limit of this process's group and those above it; None where there is none."""
    texts = [machine.line(f"{folder}/memory.max") for folder in _folders(machine, "")]
    texts += [machine.line(f"{folder}/memory.limit_in_bytes") for folder in _folders(machine, "memory")]
    limits = [int(text) for text in texts if isinstance(text, str) and _is_number(text)]
    return min((limit for limit in limits if 0 < limit < _NO_LIMIT), default=None)


def tasks(machine: Machine) -> int | None:
    """The smallest limit of processes and threads of this process's group and those above it."""
    texts = [machine.line(f"{folder}/pids.max") for part in ("", "pids") for folder in _folders(machine, part)]
    return min((int(text) for text in texts if isinstance(text, str) and _is_number(text)), default=None)


def counters(machine: Machine) -> dict[str, int]:
    """What the kernel has counted for the group since it was made; what it does not count is not there.

    oom_kill, memory_max, memory_high, pids_max: how often; memory_peak: bytes; nr_periods, nr_throttled: of the
    quota of the group or of that above it which was used up most often. Source: kernel documentation, cgroup-v2,
    cgroup-v1/memory and scheduler/sched-bwc.
    """
    counts: dict[str, int] = {}
    own, above = _folders(machine, "")[:1], _folders(machine, "")
    for folder in [*own, *_folders(machine, "memory")[:1]]:
        for name in ("oom_kill", "max", "high"):
            _keep(counts, name if name == "oom_kill" else f"memory_{name}", _events(machine, folder).get(name))
        _keep(counts, "memory_peak", machine.number(f"{folder}/memory.peak"))
        _keep(counts, "memory_peak", machine.number(f"{folder}/memory.max_usage_in_bytes"))
        _keep(counts, "memory_max", machine.number(f"{folder}/memory.failcnt"))
    for folder in [*above, *_folders(machine, "pids")]:
        _keep(counts, "pids_max", _table(machine, f"{folder}/pids.events").get("max"))
    quotas = [_table(machine, f"{folder}/cpu.stat") for folder in [*above, *_folders(machine, "cpu")]]
    most = max(quotas, key=lambda quota: quota.get("nr_throttled", 0), default={})
    return counts | {name: most[name] for name in ("nr_periods", "nr_throttled") if name in most}


def _events(machine: Machine, folder: str) -> dict[str, int]:
    return _table(machine, f"{folder}/memory.events") or _table(machine, f"{folder}/memory.oom_control")


def _keep(counts: dict[str, int], name: str, value: int | Unread | None) -> None:
    if isinstance(value, int) and value >= 0:
        counts[name] = max(value, counts.get(name, 0))


def _table(machine: Machine, path: str) -> dict[str, int]:
    """A file of lines with a name and a number each."""
    text = machine.read(path, 65536)
    lines = [] if isinstance(text, Unread) else [line.split() for line in text.splitlines()]
    return {line[0]: int(line[1]) for line in lines if len(line) == 2 and _is_number(line[1])}


def _folders(machine: Machine, controller: str) -> list[str]:
    """The folder of this process's group and all above; the empty controller is version 2.

    A container often sees its own group as the root and the host's path in /proc/self/cgroup: what is not
    there is simply not read.
    """
    text = machine.read("/proc/self/cgroup")
    path = "/" if isinstance(text, Unread) else _path(text, controller)
    tops = [f"{_TOP}/{controller}"] if controller else [_TOP, f"{_TOP}/unified"]
    return [posixpath.normpath(top + above) for top in tops for above in _upwards(path)]


def _path(text: str, controller: str) -> str:
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(","):
            return posixpath.normpath("/" + path.lstrip("/"))
    return "/"


def _upwards(path: str) -> list[str]:
    folders = [path]
    while path not in ("/", ""):
        path = posixpath.dirname(path)
        folders.append(path)
    return folders


def _quota(text: str | Unread) -> float | None:
    words = text.split() if isinstance(text, str) else []
    if len(words) != 2 or not all(_is_number(word) for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20
