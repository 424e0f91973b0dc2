"""Several attempts in one log: workers are started anew, or the whole job. The last one counts."""

from __future__ import annotations

import re
from bisect import bisect_left

from msgspec.structs import replace

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.subjects.logs.ending import ENDS
from ncclcheck.reports.subjects.logs.words.meanings import follows

_FAILED = ENDS | {"python-error", "nccl-warning"}
# A launcher's own last words: what works in the same file below them is not its job any more.
_LAUNCHER_ENDED = frozenset(("root-cause-block", "root-cause-exit", "child-failed", "launcher-return-code"))
# A program that did not come to its work at all.
_REFUSED = frozenset(("script-arguments", "torchrun-arguments", "script-missing"))
_UNREADABLE = re.compile(r"(?:(?:Syntax|Indentation|Tab)Error)+$")  # several ranks may write into one line
_OF_ONE = 4  # lines of such an error
_MOST_ALIKE = 3  # attempts that ended alike: two may be a mistake that was corrected
_APART = 100  # lines between two exceptions through the main script: those of ranks stand closer together
_BEGINS = ("launched", "omp-threads")
_ALONE = {"by_hand", "tests", "server"}  # said once a job: an exception before it was another job's
_WORKS = ("training-goes-on", "ended-well", "nccl-tests-ended")


@derived
def latest(logs: Logs) -> Logs:
    """What the last attempt said; all of it where there was one only, or where the last one said nothing."""
    starts = _starts(logs)
    if not starts:
        return logs
    judged = {file: _of_most(logs, file, line) for file, line in starts.items()}
    events = [event for event in logs.events if event.line > judged.get(event.file, 0)]
    processes = [process for process in logs.processes if process.first_line >= starts.get(process.file, 0)]
    here = {event.file for event in events} | {process.file for process in processes}
    if not here & starts.keys():
        return logs
    kept = {(process.host, process.pid) for process in processes}
    communicators = [
        replace(communicator, members=members)
        for communicator in logs.communicators
        if (members := [member for member in communicator.members if (member.host, member.pid) in kept])
    ]
    return replace(logs, events=events, processes=processes, communicators=communicators)


def _of_most(logs: Logs, file: str, start: int) -> int:
    """The line before what is judged: the last attempt; from the first one that failed alike, where most did.

    A sweep runs one program with many settings: how most runs end says more than the last one's own end.
    """
    here = [entry for entry in logs.events if entry.file == file]
    if any(entry.line > start and entry.sign in _WORKS for entry in here):
        return start
    raised = [entry for entry in here if entry.sign == "python-error" and not follows(entry)]
    kinds = {entry.fields.get("type", "") for entry in raised if entry.line > start}
    alike: dict[str, list[int]] = {}
    for event in raised:
        places = alike.setdefault(event.fields.get("type", ""), [])
        if event.line <= start and (not places or event.line > places[-1] + _APART):
            places.append(event.line)
    most = max(alike, key=lambda kind: len(alike[kind]), default="")
    if not kinds or most in kinds or len(alike[most]) < _MOST_ALIKE:
        return start
    return alike[most][0] - 1 if 2 * len(alike[most]) > sum(map(len, alike.values())) + 1 else start


@derived
def earlier(logs: Logs) -> list[LogEvent]:
    """The lines of the attempts before the last."""
    kept = {id(event) for event in latest(logs).events}
    return [event for event in logs.events if id(event) not in kept]


def _starts(logs: Logs) -> dict[str, int]:
    """File -> the line before which it speaks of earlier attempts, where there were any."""
    starts = _relaunched(logs)
    failed: dict[str, list[int]] = {}
    processes: dict[str, list[LogProcess]] = {}
    for event in logs.events:
        if event.sign == "started-anew":
            starts[event.file] = max(event.line, starts.get(event.file, 0))
        elif event.sign in _FAILED:
            failed.setdefault(event.file, []).append(event.line)
    for process in logs.processes:
        processes.setdefault(process.file, []).append(process)
    for file, lines in failed.items():
        if anew := _anew(processes.get(file, []), sorted(lines)):
            starts[file] = max(*anew, starts.get(file, 0))
    return starts


def _relaunched(logs: Logs) -> dict[str, int]:
    """File -> the line at which a launcher began after another one had failed, or by which its job works.

    The next step of a script, which runs something else, is no new attempt. Without a launcher's line an attempt
    shows by a rank whose main script raised once more, or by a program that could not be read.
    """
    begun: dict[str, int] = {}
    ended: dict[str, int] = {}
    raised: dict[str, int] = {}
    scripts: dict[str, str] = {}
    names: dict[str, set[str]] = {}  # of the programs that raised
    mains: dict[str, dict[int | None, int]] = {}
    refused: dict[str, int] = {}
    for event in sorted(logs.events, key=lambda line: line.line):
        file = event.file
        if event.sign in _REFUSED and event.fields.get("script", "") in names.get(file, ()):
            begun[file] = raised.pop(file, 0)
        if event.sign in _LAUNCHER_ENDED or event.sign in ENDS or event.sign in _REFUSED:
            ended[file] = event.line
            if event.sign == "script-arguments":
                refused[file] = event.line
        elif event.sign == "python-error" and not follows(event):
            if _never_began(event) and (file in ended or file in raised):
                begun[file] = max(ended.get(file, 0), raised.get(file, 0), event.line - _OF_ONE)
                ended.pop(file, None)
            elif file in refused:
                begun[file] = refused.pop(file)
            elif "main" in event.fields:
                again = mains.setdefault(file, {})
                before = again.get(event.rank)
                if before is not None and (event.rank is not None or before < event.line - _APART):
                    begun[file] = raised[file]
                    again.clear()
                again[event.rank] = event.line
            raised[file] = event.line
            names.setdefault(file, set()).add(event.fields.get("main", "?"))
        elif event.sign == "traceback" and "ends" not in event.fields:
            raised.setdefault(file, event.line)
        elif event.sign in _BEGINS:
            script = event.fields.get("script", "")
            same = not script or scripts.get(file, script) == script
            scripts[file] = script or scripts.get(file, "")
            if same and (file in ended or (file in raised and not _ALONE.isdisjoint(event.fields))):
                begun[file] = event.line
                ended.pop(file, None)
                raised.pop(file, None)
    return begun | _works_on(logs, ended)


def _never_began(event: LogEvent) -> bool:
    """Whether a program was not even read to its end: what failed before it in this log was another attempt."""
    return _UNREADABLE.match(event.fields.get("type", "")) is not None and "raised_at" not in event.fields


def _works_on(logs: Logs, ended: dict[str, int]) -> dict[str, int]:
    """File -> the last line of a launcher that failed, where steps or a good end of another one follow it."""
    last = {
        event.file: event.line
        for event in logs.events
        if event.sign in _WORKS and event.line > ended.get(event.file, 0)
    }
    by = {
        event.file
        for event in logs.events
        if event.sign in _LAUNCHER_ENDED and event.line == ended.get(event.file)
    }
    return {file: ended[file] for file in last if file in by}


def _anew(processes: list[LogProcess], failed: list[int]) -> list[int]:
    """Where NCCL begins once more for a rank that had begun before a failure, in another process.

    failed: the lines of failures, in order.
    """
    first: dict[tuple[str, int], int] = {}
    lines = []
    for process in sorted(processes, key=lambda started: started.first_line):
        if process.rank is None:
            continue
        began = first.setdefault((process.host, process.rank), process.first_line)
        before = bisect_left(failed, process.first_line)
        if before and (last := failed[before - 1]) > began:
            lines.append(min(p.first_line for p in processes if p.first_line > last))
            first = {(process.host, process.rank): process.first_line}
    return lines
