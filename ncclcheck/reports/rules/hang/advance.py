"""HNG008: what a running job does where nobody holds it up, or where that cannot be told."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, fine, note, seen, unknown, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.nccl_ras import advances
from ncclcheck.reports.subjects.live.running import Judged, works
from ncclcheck.reports.subjects.live.witnesses import seen_jobs
from ncclcheck.reports.text.words.fold import fold_ranks

_CANNOT_TELL = {
    "busy": "all compute and no data moved for {s:.0f} s: a long step, or waiting that burns CPU",
    "asleep": "all sleep or poll and no data moved for {s:.0f} s: a pause between steps, or waiting for work",
    "dark": "no connection of it carries data here: /proc does not show whether it advances",
    "not joined": "no rank has a connection to another, and all wait: for one that never joined (is {n} the whole "
    "job?), or before their first collective",
    "unclear": "some ranks compute, some wait, no data moved for {s:.0f} s: nobody stands out",
    "partial": "the {n} ranks that were seen wait for others, and {absent} were not seen: look at their hosts too",
}
_NOBODY = {
    "ended": "it has ended between the looks: its log says why (ncclcheck logs)",
    "starting": "it is still starting: its youngest process is {age:.0f} s old",
}


@rule(
    "HNG008",
    "it is seen whether a running job advances",
    worst=State.UNKNOWN,
    over="",
    commands=("hang",),
    unfinished=True,
)
def it_advances(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The job moves data, or reads and writes files while some ranks wait: nobody holds it up. Unknown (exit code 3)
    where that cannot be told: all ranks compute or sleep, nothing of it can be seen from the host's side, or only
    some of its hosts were looked at. A note where it is starting or has ended.

    ## Why it matters
    Between GPUs of one node NCCL moves data without any connection, and a thread that waits for a GPU burns a
    core. Nobody is accused for that.

    ## How we know
    Bytes that the connections of each rank moved between the looks (without the one to torch's store), CPU time
    and /proc/PID/io. Where these show nothing: whether NCCL's RAS, as JSON, counts more launches at its second
    answer.

    ## Fix
    - **you** look again for longer: `ncclcheck hang --seconds 60`.

    ## Source
    proc(5); sock_diag(7); NCCL user guide, RAS.
    """
    for seen_job in seen_jobs(cluster):
        if seen_job.judged.kind in _CANNOT_TELL and seen_job.ras is not None and advances(seen_job.ras):
            at = Where(node=seen_job.judged.job.ranks[0].host)
            yield fine(at, f"{seen_job.judged.job.name} advances", seen("NCCL's RAS, twice", "more launches"))
        else:
            yield from _told(seen_job.judged)


def _told(judged: Judged) -> Iterator[Finding]:
    job, at = judged.job, Where(node=judged.job.ranks[0].host)
    if judged.kind == "advances":
        moved = sum(rank.moved or 0 for rank in job.ranks)
        yield fine(at, f"{job.name} advances", seen("bytes moved", f"{moved:,} in {job.seconds:.0f} s"))
    elif judged.kind == "works":
        moved = sum(process.read + process.written for process in judged.who)
        yield fine(
            at,
            f"{job.name} advances: {words.ranks(judged.who)} reads or writes files",
            seen("bytes", f"{moved:,}"),
        )
    elif judged.kind == "alone":
        yield fine(at, f"{job.name} has one rank only: nobody waits for another")
    elif judged.kind in _NOBODY:
        text = _NOBODY[judged.kind].format(age=min(rank.age_s for rank in job.ranks))
        yield note(at, f"{job.name}: {text}", evidence=words.evidence(job.ranks[:1]), fix=[])
    elif judged.kind in _CANNOT_TELL:
        text = _CANNOT_TELL["not joined" if _have_not_joined(judged) else judged.kind].format(
            s=job.seconds, n=len(job.ranks), absent=fold_ranks(job.absent)
        )
        yield unknown(
            at,
            f"{job.name}: {text}",
            why="What was seen neither shows that it advances, nor who holds it up.",
            owner="job",
            evidence=words.evidence(job.ranks[:1]),
            fix=[_further(judged)],
        )


def _have_not_joined(judged: Judged) -> bool:
    """Whether no rank has a connection beside that to the store, and none does anything."""
    return judged.kind == "dark" and not any(rank.sockets or works(rank) for rank in judged.job.ranks)


def _further(judged: Judged) -> Remedy:
    if judged.kind == "partial":
        return you("Look at all hosts of the job.", "ncclcheck hang --hosts A,B   # or --job ID")
    return you(words.LATER, "ncclcheck hang --seconds 60")
