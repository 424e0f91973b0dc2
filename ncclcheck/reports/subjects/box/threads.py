"""Threads that an exception ended while their process went on, and what waited for them later."""

from __future__ import annotations

from collections.abc import Sequence

from ncclcheck.probes.facts import Box, BoxProcess, BoxRaised
from ncclcheck.reports.subjects.box.failure import Failure

# Kinds of a first failure that say of a process only that it did not come, or left without a word.
_WORDLESS = ("stalled", "absent", "apart", "left", "exit")
# Seconds before an exit without an exception: a program that notices that its thread is gone. A judgement.
_NOTICED_S = 10.0


def died(boxes: Sequence[Box]) -> list[tuple[Box, BoxRaised]]:
    """The oldest first."""
    found = [(box, one) for box in boxes for one in box.raised if one.thread]
    return sorted(found, key=lambda pair: pair[1].t)


def of(boxes: Sequence[Box], process: BoxProcess | None, until: float) -> BoxRaised | None:
    """What ended a thread of this process before."""
    pid = process.pid if process is not None else 0
    return next((one for _, one in died(boxes) if one.pid == pid and one.t <= until), None)


def behind(boxes: Sequence[Box], found: Failure) -> Failure:
    """The thread that a process without words waited for, or whose end it noticed; else what was found.

    A thread that ended alike in several ranks, as one that sends figures somewhere, holds up none of them.
    """
    if found.kind not in _WORDLESS and not found.of_others:
        return found
    until = found.t + (found.box.stalls[-1].silent if found.kind == "stalled" and found.box.stalls else 0.0)
    before = [(box, one) for box, one in died(boxes) if one.t <= until]
    if found.kind == "exit":
        before = [(box, one) for box, one in before if found.t - one.t <= _NOTICED_S]
    pids = {one.pid for _, one in before}
    whose = found.process.pid if found.process is not None and not found.of_others else 0
    if len(pids) != 1 or (whose and pids != {whose}):
        return found
    box, told = before[0]
    process = next((one for one in box.processes if one.pid == told.pid), None)
    return Failure(told.t, "raised", box, process, told)
