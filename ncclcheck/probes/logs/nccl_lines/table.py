"""Which process came to which communicator as which rank: of those that did not come to be in an ordinary way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from ncclcheck.probes.facts import LogCommunicator, LogMember
from ncclcheck.probes.logs.nccl_lines.records import Communicator, Log

# Kept of one set of logs, those that are not complete first: chosen, a person reads the first few, and the logs of
# one rank alone, in which no communicator is whole, hold dozens.
_MOST_COMMUNICATORS, _MOST_MEMBERS = 64, 4096


def communicators(log: Log, begins: Mapping[tuple[str, int], tuple[str, int]]) -> list[LogCommunicator]:
    """Those that are not whole, of the processes in order. begins: process -> file and line of its first line."""
    by_id: dict[str, list[LogMember]] = {}
    for (host, pid), process in log.processes.items():
        file, _ = begins.get((host, pid), ("", 0))
        for communicator in process.all:
            if communicator.comm_id and communicator.rank >= 0 and pid > 0:
                by_id.setdefault(communicator.comm_id, []).append(_member(communicator, host, pid, file))
    odd = [
        LogCommunicator(id=key, members=members[:_MOST_MEMBERS])
        for key, members in by_id.items()
        if not _whole(members)
    ]
    return [*islice(sorted(odd, key=_complete), _MOST_COMMUNICATORS)]


def _member(communicator: Communicator, host: str, pid: int, file: str) -> LogMember:
    return LogMember(
        rank=communicator.rank,
        nranks=communicator.nranks,
        host=host,
        pid=pid,
        bus_id=communicator.bus_id,
        file=file,
        line=communicator.line,
        complete=communicator.complete,
        ended=communicator.ended,
    )


def _whole(members: Iterable[LogMember]) -> bool:
    """Whether each rank came once and came through, and all speak of as many ranks."""
    members = [*members]
    ranks = {member.rank for member in members}
    return (
        all(member.complete and member.nranks == len(members) for member in members)
        and len(ranks) == len(members)
        and max(ranks) < len(members)
    )


def _complete(communicator: LogCommunicator) -> bool:
    return any(member.complete for member in communicator.members)
