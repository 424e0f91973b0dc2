"""What stands in both answers of NCCL's RAS: who has launched less, other things, or does not answer.

One answer is a moment: counts of a job that advances differ too. And a launch is only what a program has handed to
its GPU; equal counts say nothing of ends (NVIDIA/nccl#1730), nor of Send and Recv, which RAS does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ncclcheck.probes.facts import Live as Host
from ncclcheck.probes.facts import (
    LiveProcess,
    Ras,
    RasCommunicator,
    RasLaunched,
    RasRank,
)
from ncclcheck.reports.subjects.live.running import RunningJob

_LEFT = ("NOCOMM", "UNKNOWN", "ABORT")


class RanksBehind(NamedTuple):
    """Ranks of a communicator that have launched other counts than most. more: of which they launched more."""

    communicator: RasCommunicator
    ranks: list[RasRank]
    fewer: list[tuple[RasLaunched, RasLaunched]]
    more: list[tuple[RasLaunched, RasLaunched]]


def standing(ras: Ras) -> list[RasCommunicator]:
    """The communicators that are in trouble at both looks, each with what is the same in both."""
    if len(ras.looks) < 2:
        return []
    first = {communicator.hash: communicator for communicator in ras.looks[0].troubled}
    communicators = (
        _same(first[communicator.hash], communicator)
        for communicator in ras.looks[1].troubled
        if communicator.hash in first
    )
    return [
        communicator
        for communicator in communicators
        if communicator.launched or communicator.statuses or communicator.missing
    ]


def _same(first: RasCommunicator, last: RasCommunicator) -> RasCommunicator:
    known = {rank.rank for rank in first.missing}
    launched = {(launched.op, launched.launched, launched.count) for launched in first.launched}
    whole = {call.op for call in last.launched if (call.op, call.launched, call.count) not in launched}
    return RasCommunicator(
        hash=last.hash,
        launched=[launched for launched in last.launched if launched.op not in whole],
        statuses=last.statuses if last.statuses == first.statuses else [],
        missing=[rank for rank in last.missing if rank.rank in known],
    )


def behind(communicator: RasCommunicator) -> RanksBehind | None:
    """The few that launched other counts than most ranks; None where counts agree, or no side has more ranks."""
    fewer: list[tuple[RasLaunched, RasLaunched]] = []
    more: list[tuple[RasLaunched, RasLaunched]] = []
    named: dict[int, RasRank] = {}
    for op in dict.fromkeys(share.op for share in communicator.launched):
        shares = sorted(
            (share for share in communicator.launched if share.op == op), key=lambda share: -share.count
        )
        if len(shares) < 2 or shares[0].count == shares[1].count:
            continue
        for share in shares[1:]:
            (fewer if share.launched < shares[0].launched else more).append((share, shares[0]))
            named.update({rank.rank: rank for rank in share.ranks})
    if not fewer and not more:
        return None
    return RanksBehind(communicator, [named[rank] for rank in sorted(named)], fewer, more)


def left(communicator: RasCommunicator) -> Iterator[tuple[RasRank, str]]:
    """Ranks that have left a communicator which others use, with their status."""
    if not any(share.status == "RUNNING" for share in communicator.statuses):
        return
    for share in communicator.statuses:
        if share.status in _LEFT or share.status.startswith("error"):
            yield from ((rank, share.status) for rank in share.ranks)


def membership(status: str, *, several: bool = False) -> tuple[str, str]:
    """What a status in a communicator that others use says of a rank, or of several, and why they wait."""
    be, have = ("are", "have") if several else ("is", "has")
    used = "a communicator that others use"
    if status in ("NOCOMM", "UNKNOWN"):
        return (
            f"{be} no member of {used}",
            "Its process answers and knows no such communicator: it has destroyed or aborted it, or did not come "
            "through the start of it. The others wait for it there.",
        )
    statuses = {
        "ABORT": f"{have} aborted {used}",
        "FINALIZE": f"{have} begun to end {used}",
        "INIT": f"{be} still in the start of {used}",
    }
    return (
        statuses.get(status, f"{have} {status} in {used}"),
        "It takes part in no call there any more, or not yet; the others wait for it.",
    )


def process(rank: RasRank, job: RunningJob, hosts: Iterable[Host]) -> LiveProcess | None:
    """The process that RAS means by an address and a pid, among those that were looked at."""
    names = {host.host for host in hosts if rank.host in host.addresses}
    return next(
        (member for member in job.ranks if member.host in names and rank.pid in (member.inside, member.pid)),
        None,
    )


def world_rank(rank: RasRank, job: RunningJob, hosts: Iterable[Host]) -> int | None:
    """A communicator numbers its ranks by itself; the process says which rank of the job it is."""
    member = process(rank, job, hosts)
    return member.rank if member else None


def is_quiet(ras: Ras) -> bool:
    """Whether RAS finds nothing: which is not that nothing is wrong."""
    return bool(ras.looks) and all(
        not look.troubled and look.groups and not any(group.errors for group in look.groups) for look in ras.looks
    )


def advances(ras: Ras) -> bool:
    """Whether operations were launched between two answers; known from JSON only."""
    counts = [look.launches for look in ras.looks]
    return len(counts) > 1 and None not in counts and counts[0] != counts[-1]
