"""Which process of the job itself has sent the signal that ended another one, or all of it."""

from __future__ import annotations

from collections.abc import Sequence

from ncclcheck.probes.facts import Box, BoxProcess, BoxSent
from ncclcheck.reports.subjects.box.failure import BoxFailure, own_frames, short

# Seconds from sending it to what it ends, as that is noticed: chosen, launchers look every 0.1 s, the
# watcher every second.
_BEFORE_S, _AFTER_S = 5.0, 1.0


def behind(boxes: Sequence[Box], failure: BoxFailure) -> BoxFailure:
    """With who sent its signal, where that was a process of the job; else what was found."""
    if failure.kind not in ("outside", "killed"):
        return failure
    own = {process.pid for process in failure.box.processes}
    whom = failure.process or failure.raised
    near = [
        sent
        for box in boxes
        for sent in box.sent
        if sent.number == failure.number and failure.t - _BEFORE_S <= sent.t <= failure.t + _AFTER_S
    ]
    # The wrapper is none of the job's processes: it hears of what is sent to its group, or to itself.
    fits = [
        sent for sent in near if sent.group or (sent.to == whom.pid if whom is not None else sent.to not in own)
    ]
    if not fits and failure.kind == "outside" and whom is None:
        fits = [
            BoxSent(t=got.t, pid=got.sender, to=got.sender, number=got.number, group=got.of_group)
            for got in failure.box.signals
            if got.number == failure.number and got.sender in own
        ]
    return failure._replace(sent=fits[-1]) if fits else failure


def process(failure: BoxFailure) -> BoxProcess | None:
    """The sender."""
    pid = failure.sent.pid if failure.sent is not None else 0
    return next((process for process in failure.box.processes if process.pid == pid), None)


def named(failure: BoxFailure) -> str:
    """`rank 2 (pid 71)`, `python janitor.py (pid 70)`."""
    sent, of = failure.sent, process(failure)
    if sent is None:
        return ""
    rank = of.rank if of is not None and of.rank >= 0 else sent.rank
    if rank >= 0 and (of is None or of.role == "rank"):
        return f"rank {rank} (pid {sent.pid})"
    return f"{of.command[:60] if of is not None else 'a process of the job'} (pid {sent.pid})"


def at(failure: BoxFailure) -> str:
    """The line in which it did; empty where that is not known."""
    return next(iter(own_frames(failure.sent.at)), "") if failure.sent is not None else ""


def words(failure: BoxFailure) -> str:
    """Behind what happened: `, which rank 2 (pid 71) sent in stop (train.py:12)`."""
    where = f" in {short(at(failure))}" if at(failure) else ""
    return f", which {named(failure)} sent{where}" if failure.sent is not None else ""
