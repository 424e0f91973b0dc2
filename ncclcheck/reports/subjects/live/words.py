"""How a running job is told: a finding of one class, the ranks, what each does, and where stacks part."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from ncclcheck.probes.facts import Cluster, JobRecord, LiveProcess
from ncclcheck.reports.judgement.findings import Evidence, Finding, Remedy, State, Where, seen, you
from ncclcheck.reports.judgement.rule import Body, rule
from ncclcheck.reports.subjects.live import arrival
from ncclcheck.reports.subjects.live.nccl_ras import RanksBehind
from ncclcheck.reports.subjects.live.running import (
    Judged,
    Kind,
    RunningJob,
    is_stopped,
    judged_jobs,
    sleeps,
    works,
)
from ncclcheck.reports.text.words.fold import fold_ranks

# ranks, kinds or frames in one finding: chosen; of kinds the rarest are shown, who hangs is among them
_MOST_SHOWN = 3
_MOST_PIDS = 6  # processes without a rank named one by one: chosen, six pids take half a line
_KNOWN_BY = {
    "order": "its rank by the order in which one process started all",
    "store": "its rank since it has torch's store",
    "pipe": "its rank by the name of its Flight Recorder's pipe",
    "nothing": "no environment, order or pipe shows its rank",
}
LATER = "Look again for longer: what still stands then is no long step."


def hang_rule(
    code: str, title: str, kind: Kind, *, worst: State = State.FAIL
) -> Callable[[Callable[[Judged], Iterator[Finding]]], Body]:
    """Make a body that wants a job of one class a rule; skipped where no job was found."""

    def register(body: Callable[[Judged], Iterator[Finding]]) -> Body:
        @functools.wraps(body)
        def wrapper(cluster: Cluster) -> Iterator[Finding]:
            running = judged_jobs(cluster)
            for verdict in running:
                if verdict.kind == kind:
                    yield from (_named(finding, verdict.job, running) for finding in body(verdict))

        return rule(code, title, worst=worst, over="", commands=("hang", "watch"))(wrapper)

    return register


def _named(finding: Finding, job: RunningJob, all_: Sequence[Judged]) -> Finding:
    """With the job's name, where there are several."""
    return msgspec.structs.replace(finding, what=f"{job.name}: {finding.what}") if len(all_) > 1 else finding


def ranks(who: Iterable[LiveProcess]) -> str:
    """`rank 2`, `ranks 0-1,3`; with processes of no known rank."""
    of = [*who]
    known, pids = (
        {process.rank for process in of if is_known(process)},
        sorted({process.pid for process in of if not is_known(process)}),
    )
    words = [fold_ranks(known)] if known or not of else []
    if len(pids) == 1:
        words.append(f"process {pids[0]} (rank unknown)")
    elif pids:
        more = f" and {len(pids) - _MOST_PIDS} more" if len(pids) > _MOST_PIDS else ""
        words.append(f"processes {', '.join(map(str, pids[:_MOST_PIDS]))}{more} (ranks unknown)")
    return " and ".join(words)


def rank(process: LiveProcess) -> str:
    """One of them."""
    return ranks([process])


def is_known(process: LiveProcess) -> bool:
    """Whether its rank is; else its number only tells it apart."""
    return process.rank_by != "nothing"


def numbers(wanted: Iterable[int], job: RunningJob) -> str:
    """The same for ranks by number."""
    there = {process.rank: process for process in job.ranks}
    asked = [*wanted]
    away = [number for number in asked if number not in there]
    return " and ".join(
        [
            *([fold_ranks(away)] if away else []),
            *([ranks(there[number] for number in asked if number in there)] if len(away) < len(asked) else []),
        ]
    )


def where(who: Sequence[LiveProcess]) -> Where:
    """The place of one rank; of several their host, where it is one."""
    hosts, named = {process.host for process in who}, {process.rank for process in who}
    known = len(named) == 1 and is_known(who[0])
    return Where(node=who[0].host if len(hosts) == 1 else None, rank=who[0].rank if known else None)


def does(process: LiveProcess) -> str:
    """What one process does, in the words of the kernel."""
    if process.state not in ("T", "t") and is_stopped(process):
        return f"frozen by its cgroup ({process.wchan})"
    if process.state in ("T", "t"):
        return "stopped" if process.state == "T" else "stopped by a debugger"
    if works(process):
        more = (
            f", {process.running} of {process.threads} threads run"
            if process.running
            else f", waits {process.waited:.0%} for a core"
        )
        return f"computes: {process.cpu:.0%} of a core{more}"
    if sleeps(process):
        return "sleeps (hrtimer_nanosleep)"
    if process.asks:
        return f"waits for an answer of {process.asks} ({process.wchan})"
    if process.state in ("gone", "Z", "X"):
        return "ended"
    waits = f"waits in {process.wchan}" if process.wchan else f"state {process.state}"
    return f"{waits}{f' for {process.file}' if process.file else ''}"


def evidence(who: Sequence[LiveProcess]) -> list[Evidence]:
    """What was seen of the first of them."""
    return [
        seen(
            f"/proc/{process.pid}{f' of rank {process.rank}' if is_known(process) else ''} on {process.host}",
            _seen(process),
        )
        if process.rank_by != "environment"
        else seen(f"/proc/{process.pid} of rank {process.rank}", _seen(process))
        for process in who[:_MOST_SHOWN]
    ]


def _seen(process: LiveProcess) -> str:
    facts = [f"state {process.was}, then {process.state}", does(process), f"CPU {process.cpu:.0%} of a core"]
    facts += [f"{process.unread} bytes unread in its sockets"] if process.unread else []
    facts += [f"{process.closed} connections closed by the other side"] if process.closed else []
    facts += (
        [f"{process.lock_waits} of its threads ask for Python's lock every 5 ms"] if process.lock_waits else []
    )
    facts += [f"at {process.stack[0]}"] if process.stack else []
    facts += [_KNOWN_BY[process.rank_by]] if process.rank_by in _KNOWN_BY else []
    return "; ".join(facts)


def rest(judged: Judged) -> list[Evidence]:
    """What the others did meanwhile."""
    counted = Counter(alike(process) for process in judged.others)
    doings = "; ".join(f"{count} x {doing}" for doing, count in counted.most_common(_MOST_SHOWN))
    return [seen(f"the other {len(judged.others)}", f"{doings}, for {judged.job.seconds:.0f} s")] if doings else []


def after(judged: Judged) -> list[Evidence]:
    """Who waits for the rank itself, by the connections, and how long all has stood still."""
    job = judged.job
    all_evidence = (
        [seen("connections", f"no rank has sent or received anything for {job.still:.0f} s")]
        if job.still > job.seconds
        else []
    )
    if len({process.rank for process in judged.who}) != 1 or judged.who[0].helper:
        return all_evidence
    waiting = arrival.waiting_for(judged.who[0], job.ranks)
    if waiting:
        rest_ = len(job.ranks) - 1 - len(waiting)
        more = f"; the other {rest_} for those" if rest_ > 0 else ""
        all_evidence.append(
            seen(
                "connections",
                f"{numbers(waiting, job)} sent it something after it last did, and wait for it{more}",
            )
        )
    return all_evidence


def alike(process: LiveProcess) -> str:
    """What it does, in words that are the same for all that do it."""
    return "computes" if works(process) else does(process)


def parting(job: RunningJob) -> list[Evidence]:
    """The frames in which the ranks' stacks part, where any were read."""
    stacks = [(process.rank, process.stack[::-1]) for process in job.ranks if process.stack]
    groups = _frames(stacks)
    if not groups and len(stacks) > 1:
        return [seen("py-spy", f"all {len(stacks)} stacks that were read are alike: {stacks[0][1][-1]}")]
    few = sorted(groups.items(), key=lambda item: len(item[1]))
    shown = (
        few if len(few) <= _MOST_SHOWN + 1 else [*few[:_MOST_SHOWN], few[-1]]
    )  # who is apart, and where most are
    all_evidence = [seen(f"py-spy, {numbers(members, job)}", frame) for frame, members in shown]
    left = len(few) - len(shown)
    return [
        *all_evidence,
        *([seen("py-spy", f"{left} more places, of a few ranks each (JSON has all)")] if left else []),
    ]


def elsewhere(job: RunningJob) -> LiveProcess | None:
    """The one rank whose stack parts from those of all others, of three and more."""
    groups = sorted(
        _frames([(process.rank, process.stack[::-1]) for process in job.ranks if process.stack]).values(), key=len
    )
    if len(groups) != 2 or len(groups[0]) != 1 or len(groups[1]) < 2:
        return None
    return next(process for process in job.ranks if process.rank == groups[0][0])


def _frames(stacks: Sequence[tuple[int, list[str]]]) -> dict[str, list[int]]:
    """Frame -> ranks, at the first depth from the program's own first line at which they differ."""
    levels = enumerate(zip(*(frames for _, frames in stacks), strict=False))
    depth = next((depth for depth, frames in levels if len({*frames}) > 1), None)
    groups: dict[str, list[int]] = {}
    for rank, stack in stacks if depth is not None else []:
        groups.setdefault(stack[depth or 0], []).append(rank)
    return groups


def counted(behind: RanksBehind) -> str:
    """`1 AllReduce less`, `1 AllReduce less and 1 AllGather more`: of what RAS counts."""
    fewer = [f"{most.launched - few.launched} {few.op or 'operations'} less" for few, most in behind.fewer]
    more = [f"{few.launched - most.launched} {few.op or 'operations'} more" for few, most in behind.more]
    return " and ".join([*fewer[:2], *more[:2]])


def launches(behind: RanksBehind) -> list[Evidence]:
    """What RAS said of each kind in which they differ."""
    return [
        seen(
            f"NCCL's RAS, twice: {few.op or 'collectives'} of communicator {behind.communicator.hash}",
            f"launched {few.launched}; {most.count} others {most.launched}",
        )
        for few, most in [*behind.fewer, *behind.more][:_MOST_SHOWN]
    ]


def written(record: JobRecord) -> Evidence:
    """How old the records are that were read."""
    flight = record.flight
    count = len(flight.dumps) if flight else 0
    return seen(f"records of {count} ranks", f"written {record.youngest_s:.0f} to {record.oldest_s:.0f} s ago")


def record_next() -> Remedy:
    """Have Flight Recorder at hand the next time, and a pipe that asks for it while the job hangs."""
    return you(
        "Next time: let torch keep the calls of each rank, and make a pipe that asks for them.",
        "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_DUMP_TEMP_FILE=/tmp/fr_",
        "export TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_   # torch < 2.10: TORCH_NCCL_TRACE_BUFFER_SIZE=2000 too",
    )


def stacks(process: LiveProcess) -> Remedy:
    """How to see the line of the program."""
    return you("See the line of the program that it is in, on its host.", f"py-spy dump --pid {process.pid}")


def dumps(job: RunningJob) -> list[Remedy]:
    """Flight Recorder's files say which collective each rank is in, where they are written."""
    named = sorted({process.dumps for process in job.ranks if process.dumps})
    if named:
        return [
            you(
                "Flight Recorder writes its dumps when the watchdog ends the job; they name the collective.",
                f"ncclcheck logs '{named[0]}*'",
            )
        ]
    return [
        you(
            "Next time: let torch write which collective each rank is in.",
            "export TORCH_FR_DUMP_TEMP_FILE=/tmp/fr_ TORCH_FR_BUFFER_SIZE=2000",
        )
    ]
