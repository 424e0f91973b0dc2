"""Processes of a rank's own that failed before it waited for them in vain."""

from __future__ import annotations

import re
import signal

from ncclcheck.probes.facts import BoxProcess
from ncclcheck.reports.subjects.box.failure import Failure, Kind

# Seconds before the last sign of life: what a queue holds is used up in this time. A judgement.
_BEFORE_S = 30.0
_PYTHON = re.compile(r"python|pt_main|pt_data")
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


def behind(found: Failure) -> Failure:
    """The process of the stalled rank that had failed; else what was found.

    multiprocessing prints what ended its process, and the rank that reads from it is not told.
    """
    if found.kind not in ("stalled", "absent") or found.process is None or found.process.role != "rank":
        return found
    until = found.t + (found.box.stalls[-1].silent if found.kind == "stalled" and found.box.stalls else 0.0)
    failed = [
        one
        for one in found.box.processes
        if one.parent == found.process.pid and one.status and found.t - _BEFORE_S <= (one.gone or 0.0) <= until
    ]
    python = [one for one in failed if _PYTHON.search(one.command)]
    if not python:
        return found
    first = min(python, key=lambda one: one.gone or 0.0)
    number = (first.status or 0) & 0x7F
    kind: Kind = "crashed" if number in _CRASHES else "killed" if number else "exit"
    return Failure(first.gone or found.t, kind, found.box, first, number=number, told=_words(first))


def _words(one: BoxProcess) -> str:
    """The exception that it printed last."""
    return next((line for line in reversed(one.printed) if re.match(r"[A-Za-z_][\w.]*: ", line)), "")
