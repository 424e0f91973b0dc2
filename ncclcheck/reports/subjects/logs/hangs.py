"""What the watchdogs of all ranks tell of a hang: who waited in which collective, and who did not come."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.judgement.findings import Where
from ncclcheck.reports.subjects.logs.ending import goes_on_after

Kind = Literal["crossed", "mismatch", "save", "uneven", "loader", "absent", "together", "unclear"]
_GATHERS = ("_ALLGATHER_BASE", "ALLGATHER", "ALLGATHER_INTO_TENSOR_COALESCED", "_REDUCE_SCATTER_BASE")
_BROKEN = ("ib-completion", "ib-port-event", "ib-device-fatal", "gpu-xid", "gpu-lost")
_ANY_SIZE = ("ALLTOALL", "ALLTOALL_BASE", "SEND", "RECV", "COALESCED", "GATHER", "SCATTER")


@dataclass
class Wait:
    """One rank's watchdog: the number, kind and elements of the collective that it gave up."""

    rank: int
    seq: int
    op: str
    numel: str
    timeout_ms: int
    event: LogEvent


@dataclass
class Hang:
    """One process group. last: rank -> the number of the last collective that it entered.

    What is asked of it is worked out when it is first asked: by then all has been told.
    """

    group: str
    waits: list[Wait] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)
    by_rank: dict[int, LogEvent] = field(default_factory=dict)
    silent: list[int] = field(default_factory=list)

    @cached_property
    def seq(self) -> int:
        """The collective that hangs."""
        return max((wait.seq for wait in self.waits), default=0)

    @cached_property
    def here(self) -> list[Wait]:
        """Who gave up in it."""
        return [wait for wait in self.waits if wait.seq == self.seq]

    @property
    def op(self) -> str:
        """What it is, by most ranks."""
        ops = [wait.op for wait in self.here]
        return max(dict.fromkeys(ops), key=ops.count, default="")  # of a draw the first: no order of hashes

    @cached_property
    def behind(self) -> list[int]:
        """Ranks whose last collective is an earlier one."""
        waiting = {wait.rank for wait in self.here}
        return sorted(rank for rank, last in self.last.items() if last < self.seq and rank not in waiting)

    @property
    def absent(self) -> list[int]:
        """Ranks that did not come: those behind, else those of which no watchdog told anything."""
        return self.behind or self.silent

    @property
    def differ(self) -> bool:
        """Whether ranks call different things, or different sizes, at the same place."""
        sizes = {wait.numel for wait in self.here if wait.numel and wait.op not in _ANY_SIZE}
        return len({wait.op for wait in self.here}) > 1 or len(sizes) > 1

    @property
    def events(self) -> list[LogEvent]:
        """The lines of those that waited, and of those that did not come."""
        lines = [wait.event for wait in self.here]
        return [*lines[:2], *(self.by_rank[rank] for rank in self.behind[:2] if rank in self.by_rank), *lines[2:]]


@derived
def hangs(logs: Logs) -> list[Hang]:
    """The process groups in which a watchdog gave up, in the order in which they did."""
    by_group: dict[str, Hang] = {}
    heard: set[tuple[str, int]] = set()
    statuses = [event for event in logs.events if event.sign == "watchdog-status" and event.rank is not None]
    groups = {(status.rank, status.fields.get("seq")): status.fields.get("group", "0") for status in statuses}
    for event in logs.events:
        if event.sign == "watchdog-timeout" and event.rank is not None:
            group = event.fields.get("group") or groups.get((event.rank, event.fields["seq"]), "0")
            hang = by_group.setdefault(group, Hang(group))
            if (group, event.rank) not in heard:
                heard.add((group, event.rank))
                hang.waits.append(_wait(event, event.rank))
    for event in statuses:
        stuck = by_group.get(event.fields.get("group", "0"))
        if stuck is not None and event.rank is not None:
            stuck.last[event.rank] = max(stuck.last.get(event.rank, -1), int(event.fields["enqueued"]))
            stuck.by_rank.setdefault(event.rank, event)
    if len(by_group) == 1:
        _take_named(logs, next(iter(by_group.values())))
    for hang in by_group.values():
        hang.silent = _silent(logs, hang)
    return [*by_group.values()]


def _take_named(logs: Logs, hang: Hang) -> None:
    """Ranks that torch's report of the desync names; it counts from 1, where older watchdogs count from 0."""
    for event in logs.events:
        if event.sign == "desync-rank":
            for rank in map(int, re.findall(r"\d+", event.fields["behind"])):
                hang.last.setdefault(rank, min(int(event.fields["finished"]), hang.seq - 1))
                hang.by_rank.setdefault(rank, event)


def _wait(event: LogEvent, rank: int) -> Wait:
    fields = event.fields
    return Wait(rank, int(fields["seq"]), fields["op"], fields.get("numel_in", ""), int(fields["timeout"]), event)


def _silent(logs: Logs, hang: Hang) -> list[int]:
    """Ranks of the world whose watchdog said nothing, where most did. Who belongs to other groups is not known.

    Only ranks whose lines would be in these files: each rank may have a file of its own, and not all were given.
    """
    world = logs.world or (max(logs.ranks) + 1 if logs.ranks else 0)
    heard = {wait.rank for wait in hang.waits} | {*hang.last}
    if hang.group != "0" or world > 65536:
        return []
    silent = [rank for rank in sorted({*range(world)} - heard) if rank in logs.ranks or is_of_several(logs)]
    # Where the size of the world is only guessed by the highest rank, a few quoted lines name nobody.
    most = len(heard) if logs.world else len(heard) // 2
    return silent if len(silent) <= most else []


def is_of_several(logs: Logs) -> bool:
    """Whether a file holds lines of several ranks: then one that wrote nothing into it said nothing."""
    ranks: dict[str, set[int]] = {}
    lines: list[LogEvent | LogProcess] = [*logs.events, *logs.processes]
    for line in lines:
        if line.rank is not None:
            ranks.setdefault(line.file, set()).add(line.rank)
    return any(len(writers) > 1 for writers in ranks.values())


def kind(hang: Hang, logs: Logs) -> Kind:
    """What sort of hang it is, as far as the lines tell."""
    spread = any(event.sign == "zero3" for event in logs.events)
    if spread and any(wait.op in _GATHERS for wait in hang.waits) and at_last(logs, "saving", "save-frame"):
        return "save"
    if hang.differ:
        return "mismatch"
    if _crossed(hang, logs):
        return "crossed"
    if in_loader(hang, logs) is not None:
        return "loader"
    if len({(wait.seq, wait.op) for wait in hang.waits}) > 1 or (
        hang.absent and hang.absent != [0] and at_last(logs, "epoch-ends")
    ):
        return "uneven"
    if hang.absent:
        return "absent"
    world = logs.world or 0
    return "together" if world > 1 and len(hang.waits) >= world else "unclear"


def at_last(logs: Logs, *signs: str) -> LogEvent | None:
    """The last line of these signs, unless the job was at other things long after it."""
    event = max((line for line in logs.events if line.sign in signs), key=lambda line: line.order, default=None)
    return None if event is None or goes_on_after(logs, event.file, event.line) else event


def in_loader(hang: Hang, logs: Logs) -> list[int] | None:
    """Ranks that did not come and whose stack stands in a data loader; empty where the stack names no rank."""
    came = {wait.rank for wait in hang.waits}
    frames = {event.rank for event in logs.events if event.sign == "loader-frame"} - came
    return sorted(rank for rank in frames if rank is not None) if frames else None


def _crossed(hang: Hang, logs: Logs) -> bool:
    """Whether another group hangs at once that shares two ranks, and all of them have entered both.

    A link or a GPU that failed stops all groups likewise.
    """
    if hang.absent or any(event.sign in _BROKEN for event in logs.events):
        return False
    others = [other for other in hangs(logs) if other.group != hang.group and not other.absent]
    return any(len({*hang.last} & {*other.last}) > 1 for other in others)


def of_kind(logs: Logs, *kinds: Kind) -> list[Hang]:
    """The hangs of these sorts."""
    return [hang for hang in hangs(logs) if kind(hang, logs) in kinds]


def lines_of(logs: Logs, ranks: Iterable[int], *signs: str) -> list[LogEvent]:
    """What these ranks said of these signs."""
    wanted = {*ranks}
    return [event for event in logs.events if event.sign in signs and event.rank in wanted]


def waited(hang: Hang) -> str:
    """`collective 493 (ALLREDUCE) of group 0, in which 7 ranks waited for 1800 s`."""
    waiting = hang.here
    seconds = max((wait.timeout_ms for wait in waiting), default=0) / 1000
    return (
        f"collective {hang.seq} ({hang.op}) of group {hang.group}, in which {len(waiting)} "
        f"rank{'s' if len(waiting) > 1 else ''} waited for {seconds:g} s"
    )


def place(logs: Logs, rank: int) -> Where:
    """The rank, on its host where that is known."""
    hosts = [event.host for event in logs.events if event.rank == rank]
    hosts += [process.host for process in logs.processes if process.rank == rank]
    return Where(node=next(filter(None, hosts), None), rank=rank)
