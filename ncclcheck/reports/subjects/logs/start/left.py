"""Which process left a job first, without a word of its own, by what the others say of its connections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.findings import Where
from ncclcheck.reports.subjects.logs.logged import events_of, in_order
from ncclcheck.reports.subjects.logs.reported import owner_of
from ncclcheck.reports.subjects.logs.words.meanings import CONSEQUENCES


class LeftProcess(NamedTuple):
    """A process that went first, and the line that says so."""

    process: LogProcess
    by: LogEvent


def first_to_leave(logs: Logs, follow: Iterable[LogEvent]) -> LeftProcess | None:
    """The first whose connection another one of its host saw closed; else the one silent process of a named host.

    follow: lines that only say that a peer is gone.
    """
    for event in in_order(events_of(logs, "service-closed")):
        here = sorted(
            (process for process in _of_job(logs) if process.host == event.host),
            key=lambda process: process.rank or 0,
        )
        local = int(event.fields["local"])
        if here and here[0].local_ranks == len(here) > local and not here[local].ended:
            return LeftProcess(here[local], event)
        break
    named = next((event for event in follow if event.fields.get("peer")), None)
    if named is None:
        return None
    peer = named.fields["peer"].partition("%")[0]
    host = owner_of(logs, peer) or peer
    there = [process for process in _of_job(logs) if process.host == host and not _complained(logs, process)]
    return LeftProcess(there[0], named) if len(there) == 1 else None


def where_it_went(logs: Logs) -> Where:
    """The process that its peers name as gone first; its host alone where they do not tell which one it was."""
    follow = in_order(event for event in logs.events if event.sign in CONSEQUENCES)
    if left := first_to_leave(logs, follow):
        return Where(node=left.process.host, rank=left.process.rank)
    peer = next((event.fields["peer"].partition("%")[0] for event in follow if event.fields.get("peer")), "")
    host = owner_of(logs, peer) or peer
    return Where(node=host) if host in {process.host for process in _of_job(logs)} else Where()


def _of_job(logs: Logs) -> list[LogProcess]:
    return [process for process in logs.processes if process.rank is not None and process.nranks == logs.world]


def _complained(logs: Logs, process: LogProcess) -> bool:
    """Whether it said itself that something failed."""
    return any(
        (event.host, event.pid) == (process.host, process.pid)
        and (event.level == "WARN" or event.sign == "propagated")
        for event in logs.events
    )
