"""Threads that an exception ended while their process went on, and what waited for them later."""

from __future__ import annotations

from collections.abc import Sequence

from ncclcheck.probes.facts import Box, BoxProcess, BoxRaised
from ncclcheck.reports.subjects.box.failure import BoxFailure

# Kinds of a first failure that say of a process only that it did not come, or left without a word.
_WORDLESS = ("stalled", "absent", "apart", "left", "exit")
# Seconds before an exit without an exception: a program that notices that its thread is gone. A judgement.
_NOTICED_S = 10.0


def died(boxes: Sequence[Box]) -> list[tuple[Box, BoxRaised]]:
    """The oldest first."""
    ended = [(box, raised) for box in boxes for raised in box.raised if raised.thread]
    return sorted(ended, key=lambda pair: pair[1].t)


def of(boxes: Sequence[Box], process: BoxProcess | None, until: float) -> BoxRaised | None:
    """What ended a thread of this process before."""
    pid = process.pid if process is not None else 0
    return next((raised for _, raised in died(boxes) if raised.pid == pid and raised.t <= until), None)


def behind(boxes: Sequence[Box], failure: BoxFailure) -> BoxFailure:
    """The thread that a process without words waited for, or whose end it noticed; else what was found.

    A thread that ended alike in several ranks, as one that sends figures somewhere, holds up none of them.
    """
    if failure.kind not in _WORDLESS and not failure.of_others:
        return failure
    until = failure.t + (
        failure.box.stalls[-1].silent if failure.kind == "stalled" and failure.box.stalls else 0.0
    )
    before = [(box, thread) for box, thread in died(boxes) if thread.t <= until]
    if failure.kind == "exit":
        before = [(box, thread) for box, thread in before if failure.t - thread.t <= _NOTICED_S]
    pids = {thread.pid for _, thread in before}
    whose = failure.process.pid if failure.process is not None and not failure.of_others else 0
    if len(pids) != 1 or (whose and pids != {whose}):
        return failure
    box, raised = before[0]
    process = next((process for process in box.processes if process.pid == raised.pid), None)
    return BoxFailure(raised.t, "raised", box, process, raised)
