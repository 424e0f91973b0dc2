"""Whether NCCL gave up after a warning: its callers hand the error on, with the kind of it as a number."""

from __future__ import annotations

import re

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.subjects.logs.ending import came_through

# Of NCCL's own files, through which an error that ends a start or a call comes to its caller.
UPMOST = re.compile(r"\b(?:init|group|enqueue|bootstrap|collectives|proxy)\.cc:\d|\b(?:init|group|enqueue)\.cu:\d")
# Results by their names, and by their words, as programs print them (nccl.h, ncclGetErrorString).
_NAMES = {
    "UnhandledCudaError": "1",
    "unhandled cuda error": "1",
    "SystemError": "2",
    "unhandled system error": "2",
    "InternalError": "3",
    "internal error": "3",
    "InvalidArgument": "4",
    "invalid argument": "4",
    "InvalidUsage": "5",
    "invalid usage": "5",
    "RemoteError": "6",
    "remote process exited": "6",
}
_Process = tuple[str, str, int | None]


def gave_up(logs: Logs, warning: LogEvent) -> str:
    """The result (`3`) that was handed on to NCCL's caller after a warning; empty where none was.

    Where the log is of NCCL_DEBUG=WARN no line of NCCL tells it, and the program's own words may.
    """
    if came_through(logs, warning):
        return ""
    told = _handed_on(logs).get(_process(warning), [])
    if told:
        after = [result for line, result in told if line > warning.line]
        return after[0] if after else ""
    return _in_a_programs_words(logs)


def _process(event: LogEvent) -> _Process:
    return event.file, event.host, event.pid


@derived
def _handed_on(logs: Logs) -> dict[_Process, list[tuple[int, str]]]:
    """Process -> line and result of each place that handed an error on, where it came up to NCCL's caller."""
    found: dict[_Process, list[tuple[int, str]]] = {}
    came_up: set[_Process] = set()
    for event in logs.events:
        if event.sign == "propagated" and "result" in event.fields:
            found.setdefault(_process(event), []).append((event.line, event.fields["result"]))
            if UPMOST.search(event.text):
                came_up.add(_process(event))
    return {process: told for process, told in found.items() if process in came_up}


@derived
def _in_a_programs_words(logs: Logs) -> str:
    """The result that a program tells, as torch does, where NCCL's lines tell none."""
    if any(one.sign == "propagated" for one in logs.events):
        return ""
    told = (one for one in logs.events if one.sign == "nccl-result")
    named = (one.fields.get("result") or one.fields.get("words", "") for one in told)
    return next((_NAMES[name] for name in named if name in _NAMES), "")
