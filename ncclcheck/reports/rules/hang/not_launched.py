"""HNG021: ranks of a running job that have not called what the others wait in, by their own records."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.reports.judgement.findings import Finding, Where, fail, note, seen, warn, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.nccl_ras import RanksBehind, behind, process, standing, world_rank
from ncclcheck.reports.subjects.live.witnesses import SeenJob, witness_rule
from ncclcheck.reports.subjects.logs.flight import words as flight
from ncclcheck.reports.subjects.logs.flight.waits import Waits
from ncclcheck.reports.text.words.fold import fold_ranks

_LOST = ("T", "t", "gone", "Z", "X")


@witness_rule("HNG021", "every rank of a running job has called what the others wait in")
def nobody_is_awaited(seen_job: SeenJob) -> Iterator[Finding]:
    """
    ## What
    The ranks that have not entered the collective in which the others of their group wait, and that wait for
    nobody themselves: the end of the chain of who waits for whom, over all process groups.

    ## Why it matters
    That rank is where to look. What it does instead says /proc (HNG001 to HNG006) or its stack.

    ## How we know
    Flight Recorder's records, judged as `ncclcheck logs` does (LOG132, LOG133), from files, torch's worker
    server or its pipe. NCCL's RAS at two questions 2 s apart: launched operations, which must differ in the
    same way both times; a rank that does not answer it is a note where its process is seen alive. RAS of 2.24
    was seen to name a healthy rank beside a killed one. A warning where the job is not seen to stand still.

    ## Fix
    - **you** see the line of the program that the rank is in: `py-spy dump --pid PID`.

    ## Source
    torch.distributed.flight_recorder (torchfrtrace); NCCL user guide, RAS; NVIDIA/nccl src/ras/client_support.cc.
    """
    communicators = standing(seen_job.ras) if seen_job.ras else []
    fewer = [
        lagging
        for communicator in communicators
        if (lagging := behind(communicator)) and lagging.fewer and not lagging.more
    ]
    findings = [*_recorded(seen_job, seen_job.waits, fewer)] if seen_job.waits is not None else []
    yield from findings
    named = {finding.where.rank for finding in findings}
    for lagging in fewer:
        if not {*_numbers(seen_job, lagging)} & named:
            yield _behind(seen_job, lagging)
    for communicator in communicators:
        if communicator.missing:
            yield from _unanswered(seen_job, [rank.rank for rank in communicator.missing])


def _numbers(seen_job: SeenJob, lagging: RanksBehind) -> list[int]:
    ranks = (world_rank(rank, seen_job.judged.job, seen_job.hosts) for rank in lagging.ranks)
    return [rank for rank in ranks if rank is not None]


def _recorded(seen_job: SeenJob, waits: Waits, fewer: list[RanksBehind]) -> Iterator[Finding]:
    dumps, record = waits.state, seen_job.record
    assert record is not None
    # Ranks whose NCCL still makes a communicator wait too, and their call is not recorded yet.
    many = len(waits.causes) > 1 and 2 * len(waits.causes) >= len(seen_job.judged.job.ranks)
    for rank in waits.causes:
        calls = waits.awaiting(rank)
        silent = rank not in dumps.dumps
        if not calls or (silent and (waits.proven or len(dumps.dumps) <= len(dumps.missing))):
            continue
        seen_here = [live for live in seen_job.judged.job.ranks if live.rank == rank]
        waiting = waits.waiting(calls[0])
        what = "left no record" if silent else f"did not {flight.entering(dumps, calls[0])}"
        rest = ", and " if silent else " "
        judged = fail if seen_job.stands and not many else warn
        yield (
            note if silent else judged
        )(  # one that was not asked, or did not answer in time, leaves none either
            words.where(seen_here) if seen_here else Where(rank=rank),
            f"rank {rank} {what}{rest}{flight.waiting(waiting)}",
            why="All others wait, directly or over other groups, for it.",
            owner="job",
            evidence=[
                *words.evidence(seen_here),
                *flight.counts(dumps, calls[0].group, [rank, *waiting]),
                words.written(record),
                *(
                    line
                    for lagging in fewer
                    if rank in _numbers(seen_job, lagging)
                    for line in words.launches(lagging)
                ),
            ],
            fix=[words.stacks(seen_here[0])] if seen_here else [],
        )


def _behind(seen_job: SeenJob, lagging: RanksBehind) -> Finding:
    numbers = _numbers(seen_job, lagging)
    processes = [rank for rank in seen_job.judged.job.ranks if rank.rank in numbers]
    who = (
        fold_ranks(numbers) if numbers else f"{fold_ranks(rank.rank for rank in lagging.ranks)} of a communicator"
    )
    judged = fail if seen_job.stands else warn
    there = next((rank for rank in lagging.ranks if rank.host), None)
    return judged(
        words.where(processes) if processes else Where(node=there.host if there else None),
        f"{who} launched {words.counted(lagging)} than the others",
        why="The others wait in the operation that is missing.",
        owner="job",
        evidence=[*words.launches(lagging), *words.evidence(processes)],
        fix=[
            words.stacks(processes[0])
            if processes
            else you("Look on the host that RAS names.", *([f"py-spy dump --pid {there.pid}"] if there else []))
        ],
    )


def _unanswered(seen_job: SeenJob, numbers: list[int]) -> Iterator[Finding]:
    """Of the ranks that do not answer RAS those that /proc does not show: it says more of the others."""
    assert seen_job.ras is not None
    missing = {rank.rank: rank for look in seen_job.ras.looks for comm in look.troubled for rank in comm.missing}
    for number in numbers[:8]:
        rank = missing[number]
        own = process(rank, seen_job.judged.job, seen_job.hosts)
        if own is not None and own.state in _LOST:
            continue  # HNG001 and HNG002 name it
        evidence = seen("NCCL's RAS, twice", f"rank {number} of a communicator does not answer")
        if own is not None:
            what = f"RAS hears nothing of {words.rank(own)}, whose process is seen to be there"
            yield note(words.where([own]), what, evidence=[evidence, *words.evidence([own])])
        else:
            where = f" (process {rank.pid} on {rank.host})" if rank.host else ""
            what = f"a rank{where} does not answer RAS, and was not looked at"
            fix = [you("Look there too.", "ncclcheck hang --hosts HOSTS")]
            yield note(Where(node=rank.host or None), what, evidence=[evidence], fix=fix)
