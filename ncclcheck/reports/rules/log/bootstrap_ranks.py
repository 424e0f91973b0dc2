"""LOG022: the numbers of the ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from ncclcheck.probes.facts import LogEvent, LogMember, LogProcess, Logs
from ncclcheck.reports.judgement.findings import Evidence, Finding, Where, fail, seen, you
from ncclcheck.reports.subjects.logs.dialled_addresses import names
from ncclcheck.reports.subjects.logs.logged import cause, events_of, in_order, log_rule, process_of, where
from ncclcheck.reports.subjects.logs.reported import starting
from ncclcheck.reports.subjects.logs.start.communicators import (
    begun,
    differing,
    doubled,
    fixed,
    missing,
    numbered,
    whose,
)
from ncclcheck.reports.subjects.logs.words.unexplained import unexplained
from ncclcheck.reports.text.words.fold import fold_numbers, fold_ranks


@log_rule("LOG022", "every rank has a unique number, and all agree on the world size")
def numbers(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Two processes have the same RANK, ranks have different world sizes, or a rank is out of range.

    ## Why it matters
    NCCL counts who checks in: with a number twice another one is missing, and all wait or end in the start. Mostly
    RANK or WORLD_SIZE is set by hand on a node, or srun starts torchrun once for each GPU.

    ## Seen as
    dies

    ## How we know
    `rank 3 of 16 ranks has already checked in`, `mismatch in rank count from procs 16 : 8`, `Invalid rank
    requested`; of a sampler `Invalid rank 8, rank should be in the interval`. Without such a line: two processes
    began one communicator (commId) as one rank, or its ranks speak of different sizes, by `Init START`; or as many
    processes as the job has ranks began, none came through, and two hosts began with one number. Processes of
    nccl-tests that all list themselves as rank 0 were built without MPI. Ranks that Lightning's start names twice
    while it names others never.

    ## Fix
    - **you** let one launcher number the ranks: torchrun once a node (`--ntasks-per-node=1`), or srun with
      `RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID` within the task; each node another
      --node-rank.

    ## Source
    NCCL's source, bootstrap.cc; PyTorch documentation, torchrun, Environment variables; srun(1).
    """
    twice = events_of(logs, "duplicate-rank")
    differ = events_of(logs, "world-differs")
    outside = events_of(logs, "rank-out-of-range")
    if twice:
        what = f"two processes came as rank {twice[0].fields['rank']} of {twice[0].fields['world']}"
        what += _never(pair.members[0], logs) if (pair := doubled(logs)) else ""
    elif differ:
        what = f"ranks have different world sizes: {differ[0].fields['a']} and {differ[0].fields['b']}"
    elif outside:
        fields = outside[0].fields
        what = f"a rank has the number {next(iter(fields.values()), '')}, which is out of range"
        if last := fields.get("last"):
            what += f": the sampler counts {int(last) + 1} ranks, fewer than the job has, or the number is wrong"
    elif by_table := _by_table(logs):
        yield by_table
        return
    elif alike := _begun_twice(logs):
        rank, size = alike[0].rank, alike[0].nranks
        yield fail(
            Where(node=alike[-1].host, rank=rank),
            f"{names(process.host for process in alike)} each began as rank {rank} of {size}, and none came "
            "through",
            why=_WHY,
            owner="job",
            evidence=[
                seen(f"{process.file}:{process.first_line}", f"{process.host}:{process.pid} is rank {rank}")
                for process in alike
            ],
            fix=_FIX,
        )
        return
    elif (members := _members_twice(logs))[0]:
        events, of = members
        ranks = sorted({event.rank for event in events if event.rank is not None})
        others = fold_ranks(sorted({*range(of)} - {*ranks}))
        yield cause(
            events,
            f"two processes each came as {fold_ranks(ranks)} of {of}, and {others} never: two nodes have one "
            "number",
            why=_WHY,
            owner="job",
            at=Where(),
            fix=_FIX,
        )
        return
    else:
        yield from _tests_without_mpi(logs)
        return
    table = (pair.members if (pair := doubled(logs)) and twice else []) or differing(logs).get(_fewest(logs), [])
    yield cause(
        sorted([*twice, *differ, *outside], key=lambda event: event.order),
        what,
        why=_WHY,
        owner="job",
        at=_odd_number(logs, twice) or _odd_count(logs) or where((twice or differ or outside)[0]),
        fix=_FIX,
        more=begun(table) or _told(logs, twice or differ or outside),
    )


def _fewest(logs: Logs) -> int:
    return next(iter(differing(logs)), 0)


def _by_table(logs: Logs) -> Finding | None:
    """What NCCL warns of nowhere: ranks that came twice, or count each other differently, by who began what."""
    if sizes := differing(logs):
        few = next(iter(sizes.values()))
        counts = ", ".join(f"{size} on {whose(members)}" for size, members in sizes.items())
        return fail(
            Where(node=few[0].host, rank=few[0].rank),
            f"ranks of one communicator believe in different numbers of ranks: {counts}",
            why=_WHY,
            owner="job",
            evidence=begun([*few[:2], *(members[0] for members in [*sizes.values()][1:])]),
            fix=_FIX,
        )
    pair = doubled(logs)
    if pair is None:
        return None
    hosts = {member.host for member in pair.members}
    last = (pair.late or pair.members)[-1]
    who = f"{whose(pair.members)} each" if len(hosts) > 1 else f"{len(pair.members)} processes of {last.host}"
    what = f"{who} began as {numbered(pair.members)} of one communicator"
    if value := fixed(logs):
        what = f"{who} began as {numbered(pair.members)} with NCCL_COMM_ID={value}: two jobs share it, or"
        what += " numbers are given twice"
    what += f"; {last.host}:{last.pid} came after all had met" if pair.late else ""
    what += _never(last, logs)
    return fail(
        Where(node=last.host, rank=last.rank),
        what,
        why=_WHY if not pair.late else "All ranks had met before: nobody listens for one more.",
        owner="job",
        evidence=begun(pair.members),
        fix=_FIX,
    )


def _members_twice(logs: Logs) -> tuple[list[LogEvent], int]:
    """Ranks that a start names twice while others of its world are named nowhere, and the world's size.

    Where the lines stand pairwise two handlers may double each: unless as many stand there as the world has ranks,
    and the start failed.
    """
    if events_of(logs, "lightning-registered"):
        return [], 0
    kinds: dict[str, list[LogEvent]] = {}
    for event in events_of(logs, "lightning-member", "rank-announced"):
        if event.rank is not None:
            kinds.setdefault(_NUMBER.sub("#", event.text)[:_KIND], []).append(event)
    for events in kinds.values():
        world = max((int(event.fields["of"]) for event in events if "of" in event.fields), default=logs.world or 0)
        lines: dict[int | None, list[LogEvent]] = {}
        for event in events:
            lines.setdefault(event.rank, []).append(event)
        times = {sum(event.count for event in same) for same in lines.values()}
        often = max(times)
        twice = len(times) == 1 and often > 1 and len(lines) < world
        apart = any(same[-1].line - same[0].line > 1 for same in lines.values())
        if twice and (apart or (len(lines) * often == world and unexplained(logs))):
            return events, world
    return [], 0


_NUMBER, _KIND = re.compile(r"\d+"), 30  # characters by which lines that announce a rank are of one kind


def _never(member: LogMember, logs: Logs) -> str:
    """`; ranks 2-3 never came`, of its communicator."""
    lacking = missing(
        next(communicator.members for communicator in logs.communicators if member in communicator.members)
    )
    return f"; rank{'s' * (len(lacking) > 1)} {fold_numbers(lacking)} never came" if lacking else ""


_WHY = "With a number that is wrong another one is missing, and all ranks wait or end."
_FIX = [
    you(
        "Confirm: let every process print its numbers before the first collective.",
        "srun bash -c 'echo $(hostname) RANK=$RANK WORLD_SIZE=$WORLD_SIZE LOCAL_RANK=$LOCAL_RANK' | sort",
    ),
    you(
        "Let one launcher number them: torchrun once a node.",
        "srun --ntasks-per-node=1 torchrun --nnodes=$SLURM_NNODES --nproc-per-node=8 --rdzv-backend=c10d "
        "--rdzv-endpoint=$HEAD:29500 train.py",
    ),
]


def _tests_without_mpi(logs: Logs) -> Iterator[Finding]:
    """Processes of nccl-tests that each call themselves by one number, at one time: each is a job of its own."""
    devices = in_order(events_of(logs, "tests-device"))
    pairs = (pair for pair in pairwise(devices) if _of_one_number(*pair))
    alone = next((pair for pair in pairs if _at_one_time(logs, *pair, "launched")), None)
    heads = [event for event in events_of(logs, "launched") if "tests" in event.fields]
    pair = (
        alone
        or next((pair for pair in pairwise(heads) if _at_one_time(logs, *pair, "tests-device")), None)
        or _rows_twice(logs)
    )
    if pair is None:
        return
    what = f"are rank {pair[0].fields['number']}" if alone else "print the table that only rank 0 prints"
    yield cause(
        [*pair],
        f"two processes of nccl-tests {what}: it was built without MPI, and each of them tests its own GPUs alone",
        why="Without MPI=1 it knows nothing of what mpirun started beside it: no byte goes between them.",
        owner="job",
        at=Where(),
        fix=[
            you("Confirm: it is not linked with MPI.", "ldd build/all_reduce_perf | grep libmpi"),
            you("Build it with MPI.", "make clean; make MPI=1 MPI_HOME=/usr/lib/x86_64-linux-gnu/openmpi"),
        ],
    )


def _at_one_time(logs: Logs, first: LogEvent, other: LogEvent, *signs: str) -> bool:
    """Whether both stand in one file, and nothing of a run between them: it may be one after the other."""
    between = (event.order for event in events_of(logs, *_OF_ANOTHER_RUN, *signs))
    ended = events_of(logs, "tests-failure", "complaint", "python-error", "ended-badly")
    orders = (*between, *(event.order for event in ended))
    return first.file == other.file and not any(first.order < order < other.order for order in orders)


def _of_one_number(first: LogEvent, other: LogEvent) -> bool:
    mine, its = first.fields, other.fields
    return mine["number"] == its["number"] and (mine["process"], mine["machine"]) != (
        its["process"],
        its["machine"],
    )


def _rows_twice(logs: Logs) -> tuple[LogEvent, LogEvent] | None:
    """Two rows of one size below each other, where two summaries follow: tables that were printed at one time."""
    rows = sorted(events_of(logs, "nccl-tests-row"), key=lambda event: (event.file, event.line))
    ends = events_of(logs, "nccl-tests-ended")
    several = sum(event.count for event in ends) > 1 and len({event.file for event in (*rows, *ends)}) == 1
    if not several or len(rows) <= _ADJACENT or events_of(logs, "launched"):
        return None
    first, other = rows[:2]
    sizes = [tuple(event.text.split()[:2]) for event in rows]
    alike = sizes[0] == sizes[1] and first.count == other.count == 1 and len({*sizes}) > 1
    near = other.line - first.line <= _ADJACENT and other.line < min(event.line for event in ends)
    return (first, other) if alike and near else None


_OF_ANOTHER_RUN = ("nccl-tests-row", "nccl-tests-ended", "tests-failure")
_ADJACENT = 2  # lines: a warning of MPI may stand between


def _begun_twice(logs: Logs) -> list[LogProcess]:
    """Processes of several hosts with one number, in a job of which as many began as it has ranks.

    A log of several starts has more processes than ranks, or one that came through; a restart is on the same host.
    """
    begun = [process for process in logs.processes if process.nranks and process.rank is not None]
    if not begun or any(process.nranks != len(begun) or not starting(process) for process in begun):
        return []
    twice = next((rank for rank, times in Counter(process.rank for process in begun).items() if times > 1), None)
    twins = [process for process in begun if process.rank == twice]
    return twins if len({process.host for process in twins}) > 1 else []


def _odd_number(logs: Logs, twice: list[LogEvent]) -> Where | None:
    """The rank that came twice, on the host where it came last."""
    if not twice:
        return None
    rank = int(twice[0].fields["rank"])
    hosts = [process.host for process in logs.processes if process.rank == rank]
    return Where(node=hosts[-1] if hosts else None, rank=rank)


def _odd_count(logs: Logs) -> Where | None:
    """The host whose processes were told another number of ranks than most."""
    counts = Counter(process.nranks for process in logs.processes if process.nranks)
    if len(counts) < 2:
        return None
    odd = min(counts, key=lambda number: counts[number])
    return Where(node=next(process.host for process in logs.processes if process.nranks == odd))


def _told(logs: Logs, events: list[LogEvent]) -> list[Evidence]:
    process = process_of(logs, events[0])
    return [seen("nranks", process.nranks)] if process and process.nranks else []
