"""Several attempts in one log: workers are started anew, or the whole job. The last one counts."""

from __future__ import annotations

from bisect import bisect_left

from msgspec.structs import replace

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.subjects.logs.ending import ENDS

_FAILED = ENDS | {"python-error", "nccl-warning"}


@derived
def latest(logs: Logs) -> Logs:
    """What the last attempt said; all of it where there was one only, or where the last one said nothing."""
    starts = _starts(logs)
    if not starts:
        return logs
    events = [one for one in logs.events if one.line > starts.get(one.file, 0)]
    processes = [one for one in logs.processes if one.first_line >= starts.get(one.file, 0)]
    here = {one.file for one in events} | {one.file for one in processes}
    return replace(logs, events=events, processes=processes) if here & starts.keys() else logs


@derived
def earlier(logs: Logs) -> list[LogEvent]:
    """The lines of the attempts before the last."""
    kept = {id(one) for one in latest(logs).events}
    return [one for one in logs.events if id(one) not in kept]


def _starts(logs: Logs) -> dict[str, int]:
    """File -> the line before which it speaks of earlier attempts, where there were any."""
    told: dict[str, int] = {}
    failed: dict[str, list[int]] = {}
    processes: dict[str, list[LogProcess]] = {}
    for event in logs.events:
        if event.sign == "started-anew":
            told[event.file] = max(event.line, told.get(event.file, 0))
        elif event.sign in _FAILED:
            failed.setdefault(event.file, []).append(event.line)
    for process in logs.processes:
        processes.setdefault(process.file, []).append(process)
    for file, lines in failed.items():
        if anew := _anew(processes.get(file, []), sorted(lines)):
            told[file] = max(*anew, told.get(file, 0))
    return told


def _anew(processes: list[LogProcess], failed: list[int]) -> list[int]:
    """Where NCCL begins once more for a rank that had begun before a failure, in another process.

    failed: the lines of failures, in order.
    """
    first: dict[tuple[str, int], int] = {}
    found = []
    for one in sorted(processes, key=lambda one: one.first_line):
        if one.rank is None:
            continue
        began = first.setdefault((one.host, one.rank), one.first_line)
        before = bisect_left(failed, one.first_line)
        if before and (last := failed[before - 1]) > began:
            found.append(min(p.first_line for p in processes if p.first_line > last))
            first = {(one.host, one.rank): one.first_line}
    return found
