"""HNG020: ranks of a running job that are in another collective than the others."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import RasRank
from ncclcheck.reports.judgement.findings import Evidence, Finding, Where, fail, seen, warn, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.nccl_ras import (
    RanksBehind,
    behind,
    left,
    membership,
    process,
    standing,
    world_rank,
)
from ncclcheck.reports.subjects.live.witnesses import SeenJob, witness_rule
from ncclcheck.reports.subjects.logs.flight import words as flight
from ncclcheck.reports.subjects.logs.flight.match import CallMismatch, mismatches
from ncclcheck.reports.text.words.fold import fold_ranks

_KINDS = {"operation": "another operation", "size": "another size", "type": "another data type", "total": "sizes"}
_BRANCH = you(
    "Look for a branch, a size or a number of batches that is not the same on all ranks before this call.",
    "export TORCH_DISTRIBUTED_DEBUG=DETAIL   # torch then refuses such a call",
)


@witness_rule("HNG020", "all ranks of a running job are in the same collective")
def the_same_collective(seen_job: SeenJob) -> Iterator[Finding]:
    """
    ## What
    A rank of a job that stands still has called another operation, size or data type than the others at the same
    place of its group's sequence, has launched one operation more and another less, or is no member of the
    communicator any more.

    ## Why it matters
    Neither NCCL nor gloo compares calls. Each rank waits for partners that wait elsewhere, for good.

    ## How we know
    Flight Recorder's records (from files, torch's worker server, or its pipe) are laid side by side by the code of
    `ncclcheck logs` (LOG134, LOG135). NCCL's RAS, at two questions: `Rank 3 has launched up to operation 1` of one
    kind where the others launched 2, and more of another kind; or `has status NOCOMM`: its process answers, and
    knows no such communicator (in JSON: among `missing_ranks`, not `unresponsive`). A warning where the job is not
    seen to stand still.

    ## Fix
    - **you** look for a branch around a collective that not all ranks take, and for unequal batches;
      `TORCH_DISTRIBUTED_DEBUG=DETAIL` makes torch itself refuse such a call.

    ## Source
    torch.distributed.flight_recorder (torchfrtrace); NCCL user guide, RAS; seen with NCCL 2.26.2 to 2.27.7.
    """
    if seen_job.waits is not None:
        for mismatch in mismatches(seen_job.waits.state)[:4]:
            yield _recorded(seen_job, mismatch)
    if seen_job.ras is None:
        return
    for communicator in standing(seen_job.ras):
        lagging = behind(communicator)
        if lagging and lagging.fewer and lagging.more:
            yield _launched(seen_job, lagging)
        for rank, status in left(communicator):
            yield _left(seen_job, rank, status)


def _recorded(seen_job: SeenJob, mismatch: CallMismatch) -> Finding:
    waits, record = seen_job.waits, seen_job.record
    assert waits is not None
    assert record is not None
    name = flight.group(waits.state.group(mismatch.group))
    variants = "; ".join(f"{fold_ranks(ranks)}: {what}" for what, ranks in [*mismatch.variants.items()][:4])
    where, who = _at(seen_job, mismatch.odd), f"{fold_ranks(mismatch.odd)} called " if mismatch.odd else ""
    what = (
        f"{who}{_KINDS[mismatch.kind]} than the others at {mismatch.seq} of {name}"
        if mismatch.odd
        else f"the ranks of {name} disagree at call {mismatch.seq}: {variants}"
    )
    shown = [ranks[0] for ranks in mismatch.variants.values()][:3]
    judged = fail if seen_job.stands else warn
    return judged(
        where,
        what,
        why="Nothing compares calls: each waits for partners that wait elsewhere.",
        owner="job",
        evidence=[
            seen(f"Flight Recorder, call {mismatch.seq} of {name}", variants),
            *(flight.record(waits.state, rank, mismatch.calls[rank]) for rank in shown),
            words.written(record),
        ],
        fix=[_BRANCH],
    )


def _launched(seen_job: SeenJob, lagging: RanksBehind) -> Finding:
    ranks = [world_rank(rank, seen_job.judged.job, seen_job.hosts) for rank in lagging.ranks]
    known = [rank for rank in ranks if rank is not None]
    judged = fail if seen_job.stands else warn
    who = fold_ranks(known) if known else f"{fold_ranks(rank.rank for rank in lagging.ranks)} of the communicator"
    return judged(
        _at(seen_job, known) if known else Where(node=lagging.ranks[0].host or None) if lagging.ranks else Where(),
        f"{who} launched {words.counted(lagging)} than the others",
        why="They wait in an operation that it did not call, and it in one that they did not.",
        owner="job",
        evidence=[*words.launches(lagging), *_host(seen_job, lagging.ranks)],
        fix=[_BRANCH],
    )


def _left(seen_job: SeenJob, rank: RasRank, status: str) -> Finding:
    number = world_rank(rank, seen_job.judged.job, seen_job.hosts)
    who = f"rank {number}" if number is not None else f"rank {rank.rank} of a communicator"
    judged = fail if seen_job.stands else warn
    what, why = membership(status)
    return judged(
        _at(seen_job, [] if number is None else [number]),
        f"{who} {what} (NCCL's RAS: {status})",
        why=why,
        owner="job",
        evidence=[seen("NCCL's RAS, twice", f"Rank {rank.rank} has status {status}"), *_host(seen_job, [rank])],
        fix=[
            you("Read the last words of that rank: an exception or abort there comes first.", "ncclcheck logs LOG")
        ],
    )


def _at(seen_job: SeenJob, ranks: list[int]) -> Where:
    processes = [rank for rank in seen_job.judged.job.ranks if rank.rank in ranks]
    return words.where(processes) if processes else Where(rank=ranks[0] if len(ranks) == 1 else None)


def _host(seen_job: SeenJob, ranks: list[RasRank]) -> list[Evidence]:
    """Where RAS says that the process is, if it was not looked at."""
    apart = [rank for rank in ranks if rank.host and process(rank, seen_job.judged.job, seen_job.hosts) is None]
    return [seen("RAS", f"rank {rank.rank} there is process {rank.pid} on {rank.host}") for rank in apart[:2]]
