"""Which process of the job itself has sent the signal that ended another one, or all of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ncclcheck.probes.facts import Box, BoxProcess, BoxSent
from ncclcheck.reports.subjects.box.failure import BoxFailure, own_frames, program, short

# Seconds from sending it to what it ends, as that is noticed: chosen, launchers look every 0.1 s, the
# watcher every second.
_BEFORE_S, _AFTER_S = 5.0, 1.0
# Seconds between the end of a script's `sleep` and what its `kill` ends, as both are seen on a loaded machine; and
# by which an end is seen before the start of what caused it, for clocks of processes are one. Chosen.
_WOKE_S, _SEEN_S = 0.5, 0.05
_SLEEP = re.compile(r"(?:^|/)sleep\b")
_SHELL = re.compile(r"^\S*\b(?:ba|da|z|k)?sh\b")
# Programs that may end others: shells, for what a script does is not seen, and those made for it.
_STOPS = re.compile(r"^(?:(?:ba|da|z|k)?sh|kill|pkill|killall|fuser|timeout|scancel|python[\d.]*|make|sudo)\b")


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
    return failure._replace(sent=fits[-1]) if fits else failure._replace(maybe=_perhaps(failure))


def _perhaps(failure: BoxFailure) -> str:
    """What of the job itself may have sent it, where nobody saw it: a shell's `kill` leaves no trace."""
    whom, box = failure.process or failure.raised, failure.box
    if failure.kind == "outside" and (whom is None or failure.process is not None):
        return ""  # the wrapper knows its sender; `timeout` is one itself
    programs = [
        began
        for began in box.began
        if failure.t - _BEFORE_S <= began.t <= failure.t + _SEEN_S and _STOPS.search(began.command)
    ]
    if programs:
        began = programs[-1]
        who = f"rank {began.rank}" if began.rank >= 0 else f"process {began.pid}"
        place = next(iter(own_frames(began.at)), "")
        where = f" in {short(place)}" if place else ""
        return f"`{began.command}`, which {who} had started {max(0.0, failure.t - began.t):.1f} s before{where}"
    slept = [
        child.parent
        for child in box.processes
        if _SLEEP.search(child.command)
        and not child.status
        and child.gone is not None
        and failure.t - 2 * _WOKE_S < child.gone < failure.t + _WOKE_S
    ]
    pid = whom.pid if whom is not None else 0
    shells = [
        other
        for other in box.processes
        if other.pid != pid
        and _SHELL.search(other.command)
        and (other.pid in slept or (other.gone is not None and abs(other.gone - failure.t) < _WOKE_S))
        and (other.status or 0) & 0x7F != failure.number
        and (other.role != "root" or other.pid in slept)
    ]
    if not shells:
        return ""
    slept_too = ", whose `sleep` had just ended" if shells[-1].pid in slept else ", which ended then"
    return f"{program(shells[-1])}{slept_too}"


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
    if failure.maybe:
        return f", perhaps by {failure.maybe}"
    where = f" in {short(at(failure))}" if at(failure) else ""
    return f", which {named(failure)} sent{where}" if failure.sent is not None else ""
