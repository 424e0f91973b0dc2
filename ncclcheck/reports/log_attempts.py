"""Several attempts in one log: workers are started anew, or the whole job. The last one counts."""

from __future__ import annotations

from msgspec.structs import replace

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.derived import derived
from ncclcheck.reports.log_ending import ENDS

_FAILED = ENDS | {"python-error", "nccl-warning"}


@derived
def latest(logs: Logs) -> Logs:
    """What the last attempt said; all of it where there was one only, or where the last one said nothing."""
    starts = {file.name: line for file in logs.files if (line := _start(logs, file.name))}
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


def _start(logs: Logs, file: str) -> int:
    """The line before which a file speaks of earlier attempts; 0 where there were none."""
    told = [one.line for one in logs.events if one.sign == "started-anew" and one.file == file]
    failed = [one.line for one in logs.events if one.sign in _FAILED and one.file == file]
    return max([*told, *_anew([one for one in logs.processes if one.file == file], failed)], default=0)


def _anew(processes: list[LogProcess], failed: list[int]) -> list[int]:
    """Where NCCL begins once more for a rank that had begun before a failure, in another process."""
    first: dict[tuple[str, int], int] = {}
    found = []
    for one in sorted(processes, key=lambda one: one.first_line):
        if one.rank is None:
            continue
        began = first.setdefault((one.host, one.rank), one.first_line)
        between = [line for line in failed if began < line < one.first_line]
        if between:
            found.append(min(p.first_line for p in processes if p.first_line > max(between)))
            first = {(one.host, one.rank): one.first_line}
    return found
