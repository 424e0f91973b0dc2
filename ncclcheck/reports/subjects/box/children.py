"""Processes of a rank's own that failed before it waited for them in vain."""

from __future__ import annotations

import re
import signal

from ncclcheck.probes.facts import BoxProcess
from ncclcheck.reports.subjects.box.failure import BoxFailure, Kind

# Seconds before the last sign of life: what a queue holds is used up in this time. A judgement.
_BEFORE_S = 30.0
_PYTHON = re.compile(r"python|pt_main|pt_data")
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


def behind(failure: BoxFailure) -> BoxFailure:
    """The process of the stalled rank that had failed; else what was found.

    multiprocessing prints what ended its process, and the rank that reads from it is not told.
    """
    if failure.kind not in ("stalled", "absent") or failure.process is None or failure.process.role != "rank":
        return failure
    until = failure.t + (
        failure.box.stalls[-1].silent if failure.kind == "stalled" and failure.box.stalls else 0.0
    )
    failed = [
        process
        for process in failure.box.processes
        if process.parent == failure.process.pid
        and process.status
        and failure.t - _BEFORE_S <= (process.gone or 0.0) <= until
    ]
    python = [process for process in failed if _PYTHON.search(process.command)]
    if not python:
        return failure
    first = min(python, key=lambda process: process.gone or 0.0)
    number = (first.status or 0) & 0x7F
    kind: Kind = "crashed" if number in _CRASHES else "killed" if number else "exit"
    return BoxFailure(first.gone or failure.t, kind, failure.box, first, number=number, detail=_words(first))


def _words(process: BoxProcess) -> str:
    """The exception that it printed last."""
    return next((line for line in reversed(process.printed) if re.match(r"[A-Za-z_][\w.]*: ", line)), "")
