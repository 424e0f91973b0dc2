"""Communicators that are not whole: ranks that came twice or never, ids that differ or were used before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from ncclcheck.probes.facts import LogCommunicator, LogMember, LogProcess, Logs
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.judgement.findings import Evidence, seen
from ncclcheck.reports.text.words.fold import fold_names, fold_numbers

_GOES_ON = ("training-goes-on", "work-goes-on", "nccl-tests-row", "nccl-tests-ended", "ended-well")
_MOST_RANKS = 65536  # of a communicator whose missing ranks are looked for: chosen, more than any job has had


class Doubled(NamedTuple):
    """Ranks of one communicator that several processes each began as. late: those that came after all had met."""

    members: list[LogMember]
    late: list[LogMember]

    @property
    def ranks(self) -> list[int]:
        return sorted({member.rank for member in self.members})


def missing(members: Iterable[LogMember]) -> list[int]:
    """Ranks of a communicator of which no process is told to have begun it."""
    members = [*members]
    world = max(member.nranks for member in members)
    return sorted({*range(min(world, _MOST_RANKS))} - {member.rank for member in members})


def fixed(logs: Logs) -> str:
    """NCCL_COMM_ID where it is set: then each communicator, and each run, has the same id."""
    return next(
        (process.settings["NCCL_COMM_ID"] for process in logs.processes if _COMM_ID in process.settings), ""
    )


_COMM_ID = "NCCL_COMM_ID"


@derived
def doubled(logs: Logs) -> Doubled | None:
    """The first communicator with a rank that several processes began as; a process that tries again is one."""
    for communicator in logs.communicators:
        members = _open(logs, communicator)
        processes: dict[int, dict[tuple[str, int], LogMember]] = {}
        for member in members:
            processes.setdefault(member.rank, {}).setdefault((member.host, member.pid), member)
        twice = [member for of_rank in processes.values() if len(of_rank) > 1 for member in of_rank.values()]
        if not twice or sizes(members):
            continue
        return Doubled(twice, _late(logs, members, twice))
    return None


def _late(logs: Logs, members: list[LogMember], twice: list[LogMember]) -> list[LogMember]:
    """Those of a rank that came twice which began once all ranks had come through, as one file shows."""
    through = {(member.host, member.pid) for member in members if member.complete}
    if {member.rank for member in members if member.complete} != {*range(members[0].nranks)}:
        return []
    met = {
        process.file: process.started_line for process in logs.processes if (process.host, process.pid) in through
    }
    return [
        member
        for member in twice
        if not member.complete and len(met) == 1 and member.line > met.get(member.file, member.line)
    ]


def _open(logs: Logs, communicator: LogCommunicator) -> list[LogMember]:
    """What is of one for sure: under NCCL_COMM_ID several of a process, and what ended, may be of others."""
    if not fixed(logs):
        return communicator.members
    several = Counter((member.host, member.pid) for member in communicator.members)
    return [
        member for member in communicator.members if several[member.host, member.pid] == 1 and not member.ended
    ]


def sizes(members: Iterable[LogMember]) -> dict[int, list[LogMember]]:
    """Number of ranks -> who believes in it, the fewest first; empty where all agree."""
    by_size: dict[int, list[LogMember]] = {}
    for member in members:
        by_size.setdefault(member.nranks, []).append(member)
    return dict(sorted(by_size.items(), key=lambda pair: len(pair[1]))) if len(by_size) > 1 else {}


@derived
def differing(logs: Logs) -> dict[int, list[LogMember]]:
    """The sizes of the first communicator whose ranks do not agree on it."""
    return next(filter(None, (sizes(_open(logs, communicator)) for communicator in logs.communicators)), {})


@derived
def begun_again(logs: Logs) -> list[LogMember]:
    """Members that began a communicator whose id had served already."""
    if fixed(logs):
        return []
    again = []
    for communicator in logs.communicators:
        through = {
            (member.host, member.pid, member.rank): member for member in communicator.members if member.complete
        }
        again += [
            member
            for member in communicator.members
            if not member.complete and (member.host, member.pid, member.rank) in through
        ]
    return again


@derived
def apart(logs: Logs) -> list[LogMember]:
    """One member of each communicator, the smallest first, where ranks of one job began another one than the rest.

    All speak of as many ranks, no rank came twice, none came through, and no process began anything else: a job
    of groups looks the same only where every group lacks its other ranks. Versions of NCCL each make another
    commId of one id.
    """
    through = any(process.completed for process in logs.processes)
    if len({process.version for process in logs.processes if process.version}) > 1:
        return []
    waiting = [
        communicator for communicator in logs.communicators if communicator.members and "/" not in communicator.id
    ]
    members = [member for communicator in waiting for member in communicator.members]
    if through or len(waiting) < 2 or not members:
        return []
    per_process = Counter((member.host, member.pid) for member in members)
    ranks = Counter(member.rank for member in members)
    same_size = len({member.nranks for member in members}) == 1
    alone = max(per_process.values()) == 1 and max(ranks.values()) == 1
    if not same_size or not alone or len(members) > members[0].nranks:
        return []
    return [
        communicator.members[0]
        for communicator in sorted(waiting, key=lambda communicator: len(communicator.members))
    ]


@derived
def hanging(logs: Logs) -> list[list[LogMember]]:
    """The members of communicators that some began and none came through, after which nothing goes on."""
    processes = {(process.host, process.pid): process for process in logs.processes}
    worked: dict[str, int] = {}
    for event in logs.events:
        if event.sign in _GOES_ON:
            worked[event.file] = max(event.line, worked.get(event.file, 0))
    return [
        communicator.members
        for communicator in logs.communicators
        if communicator.members
        and not any(member.complete or member.ended for member in communicator.members)
        and not any(
            _went_on(processes.get((member.host, member.pid)), member) or worked.get(member.file, 0) > member.line
            for member in communicator.members
        )
    ]


@derived
def crossed(logs: Logs) -> list[list[LogMember]]:
    """Two communicators of the same ranks that hang at once, where each lacks what waits in the other.

    Only where all had met before: else the ids differ (apart).
    """
    waiting = [members for members in hanging(logs) if members[0].nranks == logs.world]
    for place, group in enumerate(waiting):
        for other in waiting[place + 1 :]:
            if {member.rank for member in other} == {*missing(group)} and any(p.completed for p in logs.processes):
                return [group, other]
    return []


def _went_on(process: LogProcess | None, member: LogMember) -> bool:
    return process is not None and process.started_line > member.line


def absent(logs: Logs, members: list[LogMember]) -> list[LogProcess]:
    """The processes of the missing ranks of a communicator, where these are the job's own numbers."""
    if not members or members[0].nranks != logs.world:
        return []
    lacking = {*missing(members)}
    return [process for process in logs.processes if process.rank in lacking]


def whose(members: Iterable[LogMember]) -> str:
    """`h[1-2]`, for a sentence."""
    return fold_names(sorted({member.host for member in members}))


def numbered(members: Iterable[LogMember]) -> str:
    """`ranks 0-2 of 4`."""
    members = [*members]
    ranks = sorted({member.rank for member in members})
    return f"rank{'s' * (len(ranks) > 1)} {fold_numbers(ranks)} of {members[0].nranks}"


def begun(members: Iterable[LogMember]) -> list[Evidence]:
    """Where the first of them began, as evidence."""
    return [
        seen(
            f"{member.file}:{member.line}",
            f"{member.host}:{member.pid} began as rank {member.rank} of {member.nranks}",
        )
        for member in [*members][:4]
    ]
