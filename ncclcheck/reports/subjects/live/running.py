"""What each running job does: one class a job, by what was seen of all its ranks between two looks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from ncclcheck.probes.facts import Cluster, Live, LiveProcess
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
_FREEZERS = (
    "__refrigerator",
    "do_freezer_trap",
    "get_signal_freeze",
)  # docker pause, a suspended step: kernel source
# From Linux 6.1 on a frozen process stays where it was, in state D. A signal could end the wait in these: state D
# in them is the freezer's alone. Seen with 6.18, cgroup v1; include/linux/freezer.h.
_NEVER_D = re.compile("futex|poll|nanosleep|do_wait$|sigsuspend")
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
        return max(one.world for one in self.ranks)

    @property
    def absent(self) -> list[int]:
        """Ranks of which no process was seen."""
        here = {one.rank for one in self.ranks if not _ended(one)}
        return [rank for rank in range(self.world) if rank not in here]

    @property
    def missing(self) -> list[int]:
        """Ranks that belong on a host that was looked at, and have no process there.

        They belong there by what the ranks beside them say; else where the job has no connection to any other
        host, and the hosts without a process of it have room for all that are absent.
        """
        told = {(one.expected[0], one.expected[1]) for one in self.ranks if len(one.expected) > 1}
        blocks = [range(first, first + count) for first, count in told]
        absent = self.absent
        belong = {rank for rank in absent if any(rank in block for block in blocks)}
        left = [rank for rank in absent if rank not in belong]
        a_host = max((count for _, count in told), default=1)
        room = 0 if self.unseen or self.strangers else len(self.empty) * a_host
        return [rank for rank in absent if rank in belong or len(left) <= room]

    @property
    def strangers(self) -> list[str]:
        """Addresses to which ranks have connections, and that are of no host that was seen to have one."""
        near = {_host_of(link.near) for one in self.ranks for link in one.connections}
        return sorted({_host_of(link.far) for one in self.ranks for link in one.connections} - near)

    @property
    def still(self) -> float:
        """Seconds for which no rank has sent or received anything, as far as is known."""
        quiet = [min(link.sent_s, link.received_s) for one in self.ranks for link in one.connections]
        return max(self.seconds, min(quiet, default=0.0))


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
    found: dict[tuple[str, str], list[LiveProcess]] = {}
    for one in _once(joined([one for host in hosts for one in host.processes])):
        found.setdefault((one.job, one.scope), []).append(one)
    seconds = min((host.seconds for host in hosts if host.processes), default=0.0)
    addresses = Counter(name for name, _ in found)
    unseen = [host.host for host in hosts if host.problem or (host.unseen and not host.processes)]
    told = []
    for (name, _), all_ in sorted(found.items()):
        ranks = sorted((one for one in all_ if not one.helper), key=lambda one: one.rank)
        there = {one.host for one in all_}
        empty = [host.host for host in hosts if host.host not in there and host.host not in unseen]
        more = f" on {all_[0].host}" if addresses[name] > 1 else ""
        if ranks:
            helpers = [one for one in all_ if one.helper]
            ranks, helpers = numbered(ranks, helpers)
            told.append(RunningJob(f"{name}{more}", ranks, helpers, seconds, empty, unseen))
    return told


def joined(processes: Sequence[LiveProcess]) -> list[LiveProcess]:
    """With those whose job's store is on another host in their job; without those of which none is known."""
    stores = {(one.stores[0], one.job, one.scope) for one in processes if one.stores and one.job != ADRIFT}
    jobs_ = {store: (job, scope) for store, job, scope in stores}
    told = [one for one in processes if one.job != ADRIFT]
    for one in processes:
        of = next((jobs_[end] for end in one.stores if end in jobs_), None) if one.job == ADRIFT else None
        if of is not None:
            told.append(replace(one, job=of[0], scope=of[1]))
    return told


def numbered(
    ranks: Sequence[LiveProcess], helpers: Sequence[LiveProcess]
) -> tuple[list[LiveProcess], list[LiveProcess]]:
    """Processes of no known rank have a number each, over all hosts, that no rank is known to have."""
    if all(one.rank_by != "nothing" for one in ranks):
        return [*ranks], [*helpers]
    known = {one.rank for one in ranks if one.rank_by != "nothing"}
    free = (number for number in range(len(ranks) + max(known, default=0) + 1) if number not in known)
    world = max(len(ranks), *(one.world for one in ranks))
    new = {(one.host, one.rank): one.rank if one.rank_by != "nothing" else next(free) for one in ranks}
    told = [replace(one, rank=new.get((one.host, one.rank), one.rank), world=world) for one in [*ranks, *helpers]]
    return sorted(told[: len(ranks)], key=lambda one: one.rank), told[len(ranks) :]


def _once(processes: Iterable[LiveProcess]) -> list[LiveProcess]:
    """Each process once, though two names lead to its machine, or hosts share their processes.

    Of two views that one is kept which has the process's connections: it is from its own network namespace.
    """
    seen: dict[tuple[object, ...], LiveProcess] = {}
    for one in processes:
        known = one.rank if one.rank_by == "environment" else -1 - one.begun  # two views number them anew
        key = (one.job, one.scope, known, one.pid, one.helper)
        if key not in seen or _known(one) > _known(seen[key]):
            seen[key] = one
    return [*seen.values()]


def _known(one: LiveProcess) -> tuple[int, int]:
    return len(one.connections), -1 if one.moved is None else one.moved


def judged(job: RunningJob) -> Judged:
    """The first that applies: what one process shows of itself counts before what all show together."""
    ranks = job.ranks
    moving = [one for one in ranks if moves(one)]
    everyone = ranks if moving else [*ranks, *(one for one in job.helpers if not one.orphan)]
    young = min(one.age_s for one in ranks) < START_S
    held_back = [one for one in ranks if is_held_back(one, job.seconds)] or short_of_cpu(ranks)
    shown: list[tuple[Kind, list[LiveProcess]]] = [
        ("ended", ranks if all(map(_ended, ranks)) else []),
        ("stopped", [one for one in everyone if is_stopped(one)]),
        ("missing", [] if young and not any(one.sockets for one in ranks) else _left_alone(job)),
        ("storage", [one for one in everyone if waits_for_a_file(one)]),
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
        if sleeping and all("nccl" in one.libraries for one in busy):
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
    kept = _kept_by_its_own(job, {one.rank for one in odd} or ({late.rank} if late else set()))
    if kept:
        return Judged(job, "elsewhere" if any(one.wchan == CHILD for one in kept) else "loader", kept)
    if odd:
        loaders = {one.rank for one in job.helpers if "torch" in one.libraries and not one.orphan}
        polls = all("poll" in one.wchan and one.rank in loaders for one in odd)
        return Judged(job, "loader" if polls else "elsewhere", odd)
    if late is not None:
        return Judged(job, "elsewhere", [late])
    if all(_polls(one) for one in ranks) and not any("torch" in one.libraries for one in job.helpers):
        return Judged(job, "asleep", ranks)
    return Judged(job, "partial" if job.absent else "silent", ranks)


def _polls(one: LiveProcess) -> bool:
    """Whether it waits for whatever comes, as the ranks of a server without requests do: no collective waits so.

    gloo waits for a thread of its own; who waits for a GPU may poll.
    """
    return "poll" in one.was_wchan and "poll" in one.wchan and "cuda" not in one.libraries


def _kept_by_its_own(job: RunningJob, away: set[int]) -> list[LiveProcess]:
    """The ranks whose own processes compute or sleep, as workers of a loader or a program that they wait for.

    away: the ranks that are not in the call of the others, where that is known. Else a process beside one rank
    alone is none that it waits for: torch's debug server, which imports torch at its start, a logger.
    """
    own = [one for one in job.helpers if not one.orphan]
    whose = {one.rank for one in own if works(one) or sleeps(one)}
    others = {one.rank for one in own if "torch" in one.libraries} - whose
    shown = whose & away if away else whose and others
    return [one for one in job.ranks if one.rank in whose] if shown and len(whose) < len(job.ranks) else []


def apart(ranks: list[LiveProcess]) -> list[LiveProcess]:
    """The few whose main thread waited elsewhere than most at both looks; gloo waits for a thread of its own."""
    common, count = Counter(one.wchan for one in ranks).most_common(1)[0]
    few = [one for one in ranks if one.wchan != common and one.wchan == one.was_wchan]
    if len(few) != len(ranks) - count:
        return []
    if len(few) < count:
        return few
    own = [
        one for one in ranks if "futex" not in one.wchan
    ]  # one of two: who waits for a thread is in its collective
    return own if len(own) == len(few) == count == 1 else []


def cut_off(job: RunningJob) -> list[LiveProcess]:
    """The ranks of the host whose connections all have sent the same again and again, with no answer.

    Both ends of such a connection where no host is in all of them.
    """
    lost = [(link.near, link.far) for one in job.ranks for link in one.connections if link.retries >= _RETRIES]
    if not lost:
        return []
    ends = [{_host_of(near), _host_of(far)} for near, far in lost]
    common = set.intersection(*ends) if len({frozenset(pair) for pair in ends}) > 1 else set()
    named = common if len(common) == 1 else set.union(*ends)
    of = {_host_of(link.near): one.host for one in job.ranks for link in one.connections}
    hosts = {of[address] for address in named if address in of}
    return [one for one in job.ranks if one.host in hosts]


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


def is_held_back(one: LiveProcess, seconds: float) -> bool:
    """Whether its cgroup or swap leaves it next to nothing."""
    return one.throttled > THROTTLED or bool(one.swap and one.faults > _FAULTS * seconds) or waits_for_memory(one)


def waits_for_memory(one: LiveProcess) -> bool:
    """Whether it waited at both looks until its cgroup would let it have more memory."""
    return "mem_cgroup" in one.was_wchan and "mem_cgroup" in one.wchan


def short_of_cpu(ranks: list[LiveProcess]) -> list[LiveProcess]:
    """The few whose quota of CPU is used up again and again, where that of no other is."""
    shares = [(one.used_up / one.periods if one.periods >= _PERIODS else 0.0, one) for one in ranks]
    few = [one for share, one in shares if share > _USED_UP]
    rest = [share for share, _ in shares if share <= _USED_UP]
    return few if len(few) <= len(rest) and all(share < _NOT_USED_UP for share in rest) else []


def is_stopped(one: LiveProcess) -> bool:
    """Whether a signal, a debugger or the freezer of its cgroup held it at both looks."""
    if one.was == one.state == "D" and _NEVER_D.search(one.was_wchan) and _NEVER_D.search(one.wchan):
        return True
    frozen = one.was_wchan in _FREEZERS and one.wchan in _FREEZERS
    return frozen or (one.was in ("T", "t") and one.state in ("T", "t"))


def waits_for_a_file(one: LiveProcess) -> bool:
    """Whether it waited for a file, a pipe with a name or a lock at both looks, and got nothing between them."""
    if one.read + one.written > MOVED or not rests(one) or waits_for_memory(one):
        return False
    named = one.wchan == one.was_wchan and any(part in one.wchan for part in _FILES)
    if re.search("pipe_(read|write)", one.wchan) and not one.file:  # without a name: from one of its own processes
        named = False
    return named or bool(one.stuck) or (one.was == "D" and one.state == "D")


def _host_of(end: str) -> str:
    return end.rpartition(":")[0]


def _ended(one: LiveProcess) -> bool:
    return one.state in ("gone", "Z", "X")
