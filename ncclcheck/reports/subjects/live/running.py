"""What each running job does: one class a job, by what was seen of all its ranks between two looks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from ncclcheck.probes.facts import Live, LiveProcess

Kind = Literal[
    "stopped", "missing", "storage", "held back", "starting", "advances", "alone", "dark", "works", "computing",
    "sleeping", "silent", "busy", "unclear", "ended",
]  # fmt: skip

# Shares of a core. A rank that waited in gloo had at most 0.02, one in a loop 0.99; what waits for a core that
# others have counts as if it had it.
IDLE, BUSY = 0.1, 0.5
# Bytes over all connections of a rank between the looks: heartbeats stay below it, a gradient does not.
MOVED = 8192
# Bytes a second that a rank reads and writes while others wait: a checkpoint or a dataset, which comes to its end.
_WORKS = 2**20
# Seconds for which a process is still starting: imports, CUDA, rendezvous. A hang is asked about later.
START_S = 60.0
_THROTTLED = 0.5  # of the time between the looks
_FAULTS = 100.0  # pages a second from disk: at 0.1 ms for one, a hundredth of the time; sound jobs have none
_SLEEPS = ("hrtimer_nanosleep", "do_nanosleep")
# Functions of the kernel in which a thread waits for a file, a lock of one or a network file system. Pipes and
# flock were seen, the others are from the kernel's source.
_FILES = (
    *("wait_for_partner", "pipe_read", "request_wait_answer", "rpc_", "nfs", "fuse", "ceph", "cl_sync_io"),
    *("locks_lock", "posix_lock", "flock"),
)


class RunningJob(NamedTuple):
    """One job on all hosts that were looked at. seconds: between the looks."""

    name: str
    ranks: list[LiveProcess]
    helpers: list[LiveProcess]
    seconds: float

    @property
    def world(self) -> int:
        """Its size."""
        return max(one.world for one in self.ranks)

    @property
    def missing(self) -> list[int]:
        """Ranks that belong on a host that was looked at, and have no process there."""
        here = {one.rank for one in self.ranks if not _ended(one)}
        belong = {
            first + n for one in self.ranks for first, count in [one.expected[:2] or (0, 0)] for n in range(count)
        }
        return sorted(rank for rank in belong if rank not in here and rank < self.world)


class Judged(NamedTuple):
    """What a job does, and the processes that show it."""

    job: RunningJob
    kind: Kind
    who: list[LiveProcess]

    @property
    def others(self) -> list[LiveProcess]:
        """The ranks that are not of these."""
        named = {one.rank for one in self.who}
        return [one for one in self.job.ranks if one.rank not in named]


def jobs(live: Iterable[Live]) -> list[RunningJob]:
    """The jobs, apart by what their ranks have in common."""
    hosts = [*live]
    found: dict[str, list[LiveProcess]] = {}
    for host in hosts:
        for one in host.processes:
            found.setdefault(one.job, []).append(one)
    seconds = min((host.seconds for host in hosts if host.processes), default=0.0)
    return [
        RunningJob(name, sorted(ranks, key=lambda one: one.rank), [one for one in all_ if one.helper], seconds)
        for name, all_ in sorted(found.items())
        if (ranks := [one for one in all_ if not one.helper])
    ]


def judged(job: RunningJob) -> Judged:
    """The first that applies: what one process shows of itself counts before what all show together."""
    ranks, everyone = job.ranks, [*job.ranks, *job.helpers]
    young = min(one.age_s for one in ranks) < START_S
    stopped = [one for one in everyone if one.was in ("T", "t") and one.state in ("T", "t")]
    storage = [one for one in everyone if waits_for_a_file(one)]
    held_back = [
        one for one in ranks if one.throttled > _THROTTLED or (one.swap and one.faults > _FAULTS * job.seconds)
    ]
    shown: list[tuple[Kind, list[LiveProcess]]] = [
        ("ended", ranks if all(map(_ended, ranks)) else []),
        ("stopped", stopped),
        ("missing", [] if young and not any(one.sockets for one in ranks) else _left_alone(job)),
        ("storage", storage),
        ("held back", held_back if len(held_back) < len(ranks) else []),
        ("alone", ranks if job.world == 1 else []),
        ("advances", [one for one in ranks if moves(one)]),
        ("starting", ranks if young else []),
    ]
    for kind, who in shown:
        if who:
            return Judged(job, kind, who)
    return _together(job)


def _left_alone(job: RunningJob) -> list[LiveProcess]:
    """The ranks that are there while others are not, unless they go on as if nobody were missing."""
    there = [one for one in job.ranks if not _ended(one)]
    return there if job.missing and not any(moves(one) for one in there) else []


def _together(job: RunningJob) -> Judged:
    """No rank tells of itself, and no data moves: who works, and who waits."""
    ranks = job.ranks
    if any(one.moved is None for one in ranks) or not any(one.sockets for one in ranks):
        return Judged(job, "dark", ranks)
    busy, idle = [one for one in ranks if works(one)], [one for one in ranks if rests(one)]
    sleeping = [one for one in ranks if sleeps(one)]
    if len(busy) == len(ranks):
        return Judged(job, "busy", busy)
    writing = [one for one in ranks if one.read + one.written > _WORKS * job.seconds]
    if writing:
        return Judged(job, "works", writing)
    if busy and len(busy) + len(idle) == len(ranks):
        return Judged(job, "computing" if len(busy) <= len(idle) else "unclear", busy)
    if len(idle) < len(ranks):
        return Judged(job, "unclear", ranks)
    few = 0 < len(sleeping) < len(ranks)
    return Judged(job, "sleeping" if few else "silent", sleeping if few else ranks)


def moves(one: LiveProcess) -> bool:
    """Whether it sends or receives."""
    return one.moved is not None and one.moved >= MOVED


def works(one: LiveProcess) -> bool:
    """Whether it computes, or would if it got a core."""
    return one.cpu + one.waited > BUSY


def rests(one: LiveProcess) -> bool:
    """Whether it waits, for whatever."""
    return one.cpu + one.waited < IDLE


def sleeps(one: LiveProcess) -> bool:
    """Whether its main thread was in a sleep of a fixed time at both looks."""
    return rests(one) and one.wchan in _SLEEPS and one.was_wchan in _SLEEPS


def waits_for_a_file(one: LiveProcess) -> bool:
    """Whether it waited for a file, a pipe with a name or a lock at both looks, and got nothing between them."""
    if one.read + one.written > MOVED or not rests(one):
        return False
    named = one.wchan == one.was_wchan and any(part in one.wchan for part in _FILES)
    if "pipe_read" in one.wchan and not one.file:  # of a pipe without a name: from one of its own processes
        named = False
    return named or bool(one.stuck) or (one.was == "D" and one.state == "D")


def _ended(one: LiveProcess) -> bool:
    return one.state in ("gone", "Z", "X")
