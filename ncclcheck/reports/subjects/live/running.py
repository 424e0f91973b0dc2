"""What each running job does: one class a job, by what was seen of all its ranks between two looks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from ncclcheck.probes.facts import Cluster, Live, LiveProcess
from ncclcheck.probes.facts.live.processes import is_frozen
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.judgement.rule import NothingToJudge
from ncclcheck.reports.subjects.live import arrival

Kind = Literal[
    "stopped", "missing", "storage", "held back", "starting", "advances", "alone", "network", "partial", "dark",
    "works", "computing", "sleeping", "asleep", "loader", "elsewhere", "silent", "busy", "unclear", "ended",
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
ADRIFT = "?"  # the job of a process without a rank, whose store is on another host
THROTTLED = 0.5  # of the time between the looks
# Of the periods of a CPU quota, used up: a pipeline's stage with a hundredth of a core used up 0.40 of its own,
# and its job went on; a rank without a quota, or within it, has none. At 100 ms each, fewer than 10 say little.
_USED_UP, _NOT_USED_UP, _PERIODS = 0.25, 0.05, 10
_FAULTS = 100.0  # pages a second from disk: at 0.1 ms for one, a hundredth of the time; healthy jobs have none
_SLEEPS = ("hrtimer_nanosleep", "do_nanosleep")
CHILD = "do_wait"  # the kernel function of waitpid(2); futex_do_wait is another
# Times that the same data was sent anew: the third comes 1.4 s after the first (RTO of 0.2 s, doubled), tcp(7). A
# stopped process is none: its kernel acknowledges, and asks with probes.
_RETRIES = 3
# Functions of the kernel in which a thread waits for a file, a lock of one or a network file system. Pipes and
# flock were seen, the others are from the kernel's source.
_FILES = (
    *(
        "wait_for_partner",
        "pipe_read",
        "pipe_write",
        "request_wait_answer",
        "rpc_",
        "nfs",
        "fuse",
        "ceph",
        "cl_sync_io",
    ),
    *("locks_lock", "posix_lock", "flock", "fcntl_setlk"),
)


class RunningJob(NamedTuple):
    """One job on all hosts that were looked at. seconds: between the looks.

    empty: hosts that were looked at and have no process of it; unseen: those that could not be looked at.
    """

    name: str
    ranks: list[LiveProcess]
    helpers: list[LiveProcess]
    seconds: float
    empty: list[str] = []  # noqa: RUF012 - of a NamedTuple, never changed
    unseen: list[str] = []  # noqa: RUF012

    @property
    def world(self) -> int:
        """Its size."""
        return max(rank.world for rank in self.ranks)

    @property
    def absent(self) -> list[int]:
        """Ranks of which no process was seen."""
        here = {rank.rank for rank in self.ranks if not _ended(rank)}
        return [rank for rank in range(self.world) if rank not in here]

    @property
    def missing(self) -> list[int]:
        """Ranks that belong on a host that was looked at, and have no process there.

        They belong there by what the ranks beside them say; else where the job has no connection to any other
        host, and the hosts without a process of it have room for all that are absent.
        """
        spans = {(rank.expected[0], rank.expected[1]) for rank in self.ranks if len(rank.expected) > 1}
        blocks = [range(first, first + count) for first, count in spans]
        absent = self.absent
        belong = {rank for rank in absent if any(rank in block for block in blocks)}
        left = [rank for rank in absent if rank not in belong]
        a_host = max((count for _, count in spans), default=1)
        room = 0 if self.unseen or self.strangers else len(self.empty) * a_host
        return [rank for rank in absent if rank in belong or len(left) <= room]

    @property
    def strangers(self) -> list[str]:
        """Addresses to which ranks have connections, and that are of no host that was seen to have one."""
        near = {_host_of(link.near) for rank in self.ranks for link in rank.connections}
        return sorted({_host_of(link.far) for rank in self.ranks for link in rank.connections} - near)

    @property
    def still(self) -> float:
        """Seconds for which no rank has sent or received anything, as far as is known."""
        quiet = [min(link.sent_s, link.received_s) for rank in self.ranks for link in rank.connections]
        return max(self.seconds, min(quiet, default=0.0))


class Judged(NamedTuple):
    """What a job does, and the processes that show it."""

    job: RunningJob
    kind: Kind
    who: list[LiveProcess]

    @property
    def others(self) -> list[LiveProcess]:
        """The ranks that are not of these."""
        named = {process.rank for process in self.who}
        return [rank for rank in self.job.ranks if rank.rank not in named]


@derived
def judged_jobs(cluster: Cluster) -> list[Judged]:
    """What each job does. Raises NothingToJudge where no process of one was seen."""
    running = jobs(cluster.measurements.live)
    if not running:
        raise NothingToJudge("no process of a distributed job was seen")
    return [*map(judged, running)]


def jobs(live: Iterable[Live]) -> list[RunningJob]:
    """The jobs, apart by what their ranks have in common."""
    hosts = [*live]
    by_job: dict[tuple[str, str], list[LiveProcess]] = {}
    for process in _once(joined([live_process for host in hosts for live_process in host.processes])):
        by_job.setdefault((process.job, process.scope), []).append(process)
    seconds = min((host.seconds for host in hosts if host.processes), default=0.0)
    addresses = Counter(name for name, _ in by_job)
    unseen = [host.host for host in hosts if host.problem or (host.unseen and not host.processes)]
    running = []
    for (name, _), all_ in sorted(by_job.items()):
        ranks = sorted((member for member in all_ if not member.helper), key=lambda member: member.rank)
        there = {member.host for member in all_}
        empty = [host.host for host in hosts if host.host not in there and host.host not in unseen]
        more = f" on {all_[0].host}" if addresses[name] > 1 else ""
        if ranks:
            helpers = [member for member in all_ if member.helper]
            ranks, helpers = numbered(ranks, helpers)
            running.append(RunningJob(f"{name}{more}", ranks, helpers, seconds, empty, unseen))
    return running


def joined(processes: Sequence[LiveProcess]) -> list[LiveProcess]:
    """With those whose job's store is on another host in their job; without those of which none is known."""
    stores = {
        (member.stores[0], member.job, member.scope)
        for member in processes
        if member.stores and member.job != ADRIFT
    }
    jobs_ = {store: (job, scope) for store, job, scope in stores}
    members = [member for member in processes if member.job != ADRIFT]
    for process in processes:
        of = next((jobs_[end] for end in process.stores if end in jobs_), None) if process.job == ADRIFT else None
        if of is not None:
            members.append(replace(process, job=of[0], scope=of[1]))
    return members


def numbered(
    ranks: Sequence[LiveProcess], helpers: Sequence[LiveProcess]
) -> tuple[list[LiveProcess], list[LiveProcess]]:
    """Processes of no known rank have a number each, over all hosts, that no rank is known to have."""
    if all(rank.rank_by != "nothing" for rank in ranks):
        return [*ranks], [*helpers]
    known = {rank.rank for rank in ranks if rank.rank_by != "nothing"}
    free = (number for number in range(len(ranks) + max(known, default=0) + 1) if number not in known)
    world = max(len(ranks), *(rank.world for rank in ranks))
    new = {(rank.host, rank.rank): rank.rank if rank.rank_by != "nothing" else next(free) for rank in ranks}
    processes = [
        replace(process, rank=new.get((process.host, process.rank), process.rank), world=world)
        for process in [*ranks, *helpers]
    ]
    return sorted(processes[: len(ranks)], key=lambda process: process.rank), processes[len(ranks) :]


def _once(processes: Iterable[LiveProcess]) -> list[LiveProcess]:
    """Each process once, though two names lead to its machine, or hosts share their processes.

    Of two views that one is kept which has the process's connections: it is from its own network namespace.
    """
    seen: dict[tuple[object, ...], LiveProcess] = {}
    for process in processes:
        known = (
            process.rank if process.rank_by == "environment" else -1 - process.begun
        )  # two views number them anew
        key = (process.job, process.scope, known, process.pid, process.helper)
        if key not in seen or _known(process) > _known(seen[key]):
            seen[key] = process
    return [*seen.values()]


def _known(process: LiveProcess) -> tuple[int, int]:
    return len(process.connections), -1 if process.moved is None else process.moved


def judged(job: RunningJob) -> Judged:
    """The first that applies: what one process shows of itself counts before what all show together."""
    ranks = job.ranks
    moving = [rank for rank in ranks if moves(rank)]
    everyone = ranks if moving else [*ranks, *(helper for helper in job.helpers if not helper.orphan)]
    young = min(rank.age_s for rank in ranks) < START_S
    held_back = [rank for rank in ranks if is_held_back(rank, job.seconds)] or short_of_cpu(ranks)
    shown: list[tuple[Kind, list[LiveProcess]]] = [
        ("ended", ranks if all(map(_ended, ranks)) else []),
        ("stopped", [process for process in everyone if is_stopped(process)]),
        ("missing", [] if young and not any(rank.sockets for rank in ranks) else _left_alone(job)),
        ("storage", [process for process in everyone if waits_for_a_file(process)]),
        ("held back", held_back if len(held_back) < len(ranks) else []),
        ("alone", ranks if job.world == 1 else []),
        ("advances", moving),
        ("starting", ranks if young else []),
        ("network", cut_off(job)),
    ]
    for kind, who in shown:
        if who:
            return Judged(job, kind, who)
    return _together(job)


def _left_alone(job: RunningJob) -> list[LiveProcess]:
    """The ranks that are there while others are not, unless they go on as if nobody were missing."""
    there = [rank for rank in job.ranks if not _ended(rank)]
    return there if job.missing and not any(moves(process) for process in there) else []


def _together(job: RunningJob) -> Judged:
    """No rank tells of itself, and no data moves: who works, and who waits."""
    ranks = job.ranks
    if any(rank.moved is None for rank in ranks) or not any(rank.sockets for rank in ranks):
        return Judged(job, "dark", ranks)
    busy, idle = [rank for rank in ranks if works(rank)], [rank for rank in ranks if rests(rank)]
    sleeping = [rank for rank in ranks if sleeps(rank)]
    if len(busy) == len(ranks):
        return Judged(job, "busy", busy)
    writing = [rank for rank in ranks if rank.read + rank.written > _WORKS * job.seconds]
    if writing:
        return Judged(job, "works", writing)
    if busy and len(busy) + len(idle) == len(ranks):
        if sleeping and all("nccl" in process.libraries for process in busy):
            return Judged(job, "sleeping", sleeping)  # who waits in NCCL's start, or for a GPU, burns a core
        return Judged(job, "computing" if len(busy) <= len(idle) else "unclear", busy)
    if len(idle) < len(ranks):
        return Judged(job, "unclear", ranks)
    if sleeping:
        return Judged(job, "sleeping" if len(sleeping) < len(ranks) else "asleep", sleeping)
    return _all_rest(job)


def _all_rest(job: RunningJob) -> Judged:
    """Every rank only waits: one of them for something that is no rank, where that can be told."""
    ranks = job.ranks
    odd, late = apart(ranks), arrival.not_arrived(ranks)
    kept = _kept_by_its_own(job, {process.rank for process in odd} or ({late.rank} if late else set()))
    if kept:
        return Judged(job, "elsewhere" if any(process.wchan == CHILD for process in kept) else "loader", kept)
    if odd:
        loaders = {helper.rank for helper in job.helpers if "torch" in helper.libraries and not helper.orphan}
        polls = all("poll" in process.wchan and process.rank in loaders for process in odd)
        return Judged(job, "loader" if polls else "elsewhere", odd)
    if late is not None:
        return Judged(job, "elsewhere", [late])
    if all(_polls(rank) for rank in ranks) and not any("torch" in helper.libraries for helper in job.helpers):
        return Judged(job, "asleep", ranks)
    return Judged(job, "partial" if job.absent else "silent", ranks)


def _polls(process: LiveProcess) -> bool:
    """Whether it waits for whatever comes, as the ranks of a server without requests do: no collective waits so.

    gloo waits for a thread of its own; who waits for a GPU may poll.
    """
    return "poll" in process.was_wchan and "poll" in process.wchan and "cuda" not in process.libraries


def _kept_by_its_own(job: RunningJob, away: set[int]) -> list[LiveProcess]:
    """The ranks whose own processes compute or sleep, as workers of a loader or a program that they wait for.

    away: the ranks that are not in the call of the others, where that is known. Else a process beside one rank
    alone is none that it waits for: torch's debug server, which imports torch at its start, a logger.
    """
    own = [helper for helper in job.helpers if not helper.orphan]
    whose = {process.rank for process in own if works(process) or sleeps(process)}
    others = {process.rank for process in own if "torch" in process.libraries} - whose
    shown = whose & away if away else whose and others
    return [rank for rank in job.ranks if rank.rank in whose] if shown and len(whose) < len(job.ranks) else []


def apart(ranks: list[LiveProcess]) -> list[LiveProcess]:
    """The few whose main thread waited elsewhere than most at both looks; gloo waits for a thread of its own."""
    common, count = Counter(rank.wchan for rank in ranks).most_common(1)[0]
    few = [rank for rank in ranks if rank.wchan != common and rank.wchan == rank.was_wchan]
    if len(few) != len(ranks) - count:
        return []
    if len(few) < count:
        return few
    own = [
        rank for rank in ranks if "futex" not in rank.wchan
    ]  # one of two: who waits for a thread is in its collective
    return own if len(own) == len(few) == count == 1 else []


def cut_off(job: RunningJob) -> list[LiveProcess]:
    """The ranks of the host whose connections all have sent the same again and again, with no answer.

    Both ends of such a connection where no host is in all of them.
    """
    lost = [(link.near, link.far) for rank in job.ranks for link in rank.connections if link.retries >= _RETRIES]
    if not lost:
        return []
    ends = [{_host_of(near), _host_of(far)} for near, far in lost]
    common = set.intersection(*ends) if len({frozenset(pair) for pair in ends}) > 1 else set()
    named = common if len(common) == 1 else set.union(*ends)
    of = {_host_of(link.near): rank.host for rank in job.ranks for link in rank.connections}
    hosts = {of[address] for address in named if address in of}
    return [rank for rank in job.ranks if rank.host in hosts]


def moves(process: LiveProcess) -> bool:
    """Whether it sends or receives."""
    return process.moved is not None and process.moved >= MOVED


def works(process: LiveProcess) -> bool:
    """Whether it computes, or would if it got a core."""
    return process.cpu + process.waited > BUSY


def rests(process: LiveProcess) -> bool:
    """Whether it waits, for whatever."""
    return process.cpu + process.waited < IDLE


def sleeps(process: LiveProcess) -> bool:
    """Whether its main thread was in a sleep of a fixed time at both looks."""
    return rests(process) and process.wchan in _SLEEPS and process.was_wchan in _SLEEPS


def is_held_back(process: LiveProcess, seconds: float) -> bool:
    """Whether its cgroup or swap leaves it next to nothing."""
    return (
        process.throttled > THROTTLED
        or bool(process.swap and process.faults > _FAULTS * seconds)
        or waits_for_memory(process)
    )


def waits_for_memory(process: LiveProcess) -> bool:
    """Whether it waited at both looks until its cgroup would let it have more memory."""
    return "mem_cgroup" in process.was_wchan and "mem_cgroup" in process.wchan


def short_of_cpu(ranks: list[LiveProcess]) -> list[LiveProcess]:
    """The few whose quota of CPU is used up again and again, where that of no other is."""
    shares = [(rank.used_up / rank.periods if rank.periods >= _PERIODS else 0.0, rank) for rank in ranks]
    few = [process for share, process in shares if share > _USED_UP]
    rest = [share for share, _ in shares if share <= _USED_UP]
    return few if len(few) <= len(rest) and all(share < _NOT_USED_UP for share in rest) else []


def is_stopped(process: LiveProcess) -> bool:
    """Whether a signal, a debugger or the freezer of its cgroup held it at both looks."""
    frozen = is_frozen(process.was, process.was_wchan) and is_frozen(process.state, process.wchan)
    return frozen or (process.was in ("T", "t") and process.state in ("T", "t"))


def waits_for_a_file(process: LiveProcess) -> bool:
    """Whether it waited for a file, a pipe with a name or a lock at both looks, and got nothing between them."""
    if process.read + process.written > MOVED or not rests(process) or waits_for_memory(process):
        return False
    named = process.wchan == process.was_wchan and any(part in process.wchan for part in _FILES)
    if (
        re.search("pipe_(read|write)", process.wchan) and not process.file
    ):  # without a name: from one of its own processes
        named = False
    asks_again = bool(process.holder) and sleeps(process)  # for a lock, as SQLite does
    return named or asks_again or bool(process.stuck) or (process.was == "D" and process.state == "D")


def _host_of(end: str) -> str:
    return end.rpartition(":")[0]


def _ended(process: LiveProcess) -> bool:
    return process.state in ("gone", "Z", "X")
