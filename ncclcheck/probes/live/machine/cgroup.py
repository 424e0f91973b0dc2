"""What the kernel has counted for the control group of a process: CPU quota used up, memory refused.

A part of the streamed probe: standard library only, Python 3.6.
"""

import re
from typing import Dict, Iterator

from ncclcheck.probes.live.machine.proc import Proc

_TOP = "/sys/fs/cgroup"
# Of Slurm, the groups of a task's step and job: what the kernel kills there belongs to the same job.
_OF_A_JOB = re.compile(r"/(job|step)_[^/]+$")


def counted(proc: Proc, pid: str) -> Dict[str, int]:
    """Since the group was made.

    periods, throttled, held_us: of the quota, its own or one above, that was used up most often; refused: how
    often it wanted more memory than its limit; oom_kill: processes of it, or of its job, that were killed.
    """
    counts = {"periods": 0, "throttled": 0, "held_us": 0, "refused": 0, "oom_kill": 0}
    for text in (_text(proc, folder, "cpu.stat") for folder in _folders(proc, pid, "cpu")):
        table = _table(text)
        if table.get("nr_throttled", 0) > counts["throttled"]:
            throttled_us = table.get("throttled_usec", table.get("throttled_time", 0) // 1000)
            counts.update(
                periods=table.get("nr_periods", 0), throttled=table["nr_throttled"], held_us=throttled_us
            )
    read = [(folder, _memory_events(proc, folder)) for folder in _folders(proc, pid, "memory")]
    there = [group for group in read if group[1]]
    for folder, text in there[:1] + [group for group in there[1:] if _OF_A_JOB.search(group[0])]:
        events = _table(text)
        failed = _text(proc, folder, "memory.failcnt").strip()
        refused = events.get("high", 0) + events.get("max", 0) + (int(failed) if failed.isdigit() else 0)
        counts["refused"] = max(counts["refused"], refused)
        counts["oom_kill"] = max(counts["oom_kill"], events.get("oom_kill", 0))
    return counts


def _folders(proc: Proc, pid: str, controller: str) -> Iterator[str]:
    """The folder of its group and all above it; a container sees its own group as the last of them."""
    for line in proc.text(pid, "cgroup").splitlines():
        _, kinds, path = (line + "::").split(":", 2)
        names = kinds.split(",")
        if kinds and controller not in names:
            continue
        parts = [part for part in path[:-2].split("/") if part]
        for top in [f"{_TOP}/{hierarchy}" for hierarchy in {controller, kinds}] if kinds else [_TOP]:
            for depth in range(len(parts), -1, -1):
                yield "/".join([top, *parts[:depth]])


def _memory_events(proc: Proc, folder: str) -> str:
    """Of a group of v2 or v1; empty where there is none."""
    return _text(proc, folder, "memory.events") or _text(proc, folder, "memory.oom_control")


def _text(proc: Proc, folder: str, name: str) -> str:
    return proc.text("..", folder.lstrip("/"), name)


def _table(text: str) -> Dict[str, int]:
    rows = [line.split() for line in text.splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
