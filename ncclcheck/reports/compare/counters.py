"""Counters that moved between two results, and how many more are too many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ncclcheck.probes.facts import Node, Unread, Xid, at
from ncclcheck.reports.compare.watched import PORT_COUNTS, WatchedCounter

# Xids that programs bring about themselves, and those after which a GPU must be reset or replaced.
_OF_PROGRAMS = {13, 31, 43, 45, 137}
_OF_HARDWARE = {48, 61, 62, 64, 74, 79, 95, 119, 120, 140}


@dataclass(frozen=True)
class Rise:
    """A counter that moved. bad: by more than a trace."""

    words: str
    before: str
    after: str
    bad: bool
    grave: bool = False
    part: str = ""


def counted(counts: Sequence[WatchedCounter], old: Any, new: Any, *, rebooted: bool) -> Iterator[Rise]:
    """Counters that are facts of their own."""
    for count in counts:
        before, after = at(old, count.path), at(new, count.path)
        if type(before) is Unread or type(after) is Unread:
            continue
        if rise := _rise(before, after, anew=rebooted and not count.ever):
            most = _most(count, old, new, anew=rebooted)
            yield Rise(count.words, *_numbers(before, after, rise), bad=rise >= most, grave=count.grave)


def _most(count: WatchedCounter, old: Any, new: Any, *, anew: bool) -> float:
    """From how many on it is bad: a number, or percent of what was counted meanwhile."""
    if not count.share_of:
        return count.bad
    before, after = at(old, count.share_of), at(new, count.share_of)
    return max(10.0, _rise(before, after, anew=anew) * count.bad / 100)


def named(path: str, old: Any, new: Any, *, rebooted: bool) -> Iterator[Rise]:
    """Counters in a list, by their names."""
    before, after = (at(side, path) if path else [] for side in (old, new))
    if type(before) is Unread or type(after) is Unread:
        return
    known = {counter.name: counter.value for counter in before}
    for counter in after:
        was = known.get(counter.name)
        if was is not None and (rise := _rise(was, counter.value, anew=rebooted)):
            bad = rise >= PORT_COUNTS.get(counter.name, 1)
            yield Rise(counter.name, *_numbers(was, counter.value, rise), bad=bad)


def _rise(before: int, after: int, *, anew: bool) -> int:
    """How many more; a counter that is lower than before has begun anew."""
    return after if anew or after < before else after - before


def _numbers(before: int, after: int, rise: int) -> tuple[str, str]:
    return str(before), f"{after} ({rise} more{'' if after - before == rise else ', counted anew'})"


def xids(before: Node, after: Node) -> Iterator[Rise]:
    """Lines of the kernel log that are new."""
    old, new = at(before, "gpus.xids"), at(after, "gpus.xids")
    if type(old) is Unread or type(new) is Unread:
        return
    known = {(xid.code, xid.pci): xid.times for xid in old}
    for xid in new:
        was = known.get((xid.code, xid.pci), 0)
        if xid.times > was:
            yield _xid(xid, was)


def _xid(xid: Xid, was: int) -> Rise:
    return Rise(
        f"{xid.name} in the kernel log",
        str(was),
        f"{xid.times} ({xid.times - was} more)",
        bad=xid.code not in _OF_PROGRAMS,
        grave=xid.code in _OF_HARDWARE,
        part=f"GPU {xid.pci}",
    )
