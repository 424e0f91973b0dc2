"""HNG007: all ranks of a running job wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.reports.judgement.findings import Finding, fail, seen, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import Judged
from ncclcheck.reports.subjects.live.words import hang_rule


@hang_rule("HNG007", "the ranks of a running job do not all wait for each other", "silent")
def they_do_not_all_wait(judged: Judged) -> Iterator[Finding]:
    """
    ## What
    No rank computes, sleeps or waits for a file, and no data moves between them: all wait, and nobody is left to
    come.

    ## Why it matters
    It does not end by itself: a rank is in another collective than the others, calls it with another size, has
    left the loop early, or the network lost what it was given. Each of these looks the same from outside.

    ## How we know
    CPU time, the function of the kernel and the bytes of every connection, at both looks. Bytes that lie unread
    in a rank's queue name who does not read; bytes that are not acknowledged name the path. With py-spy the
    stacks are compared: the frame in which they part names the rank that is elsewhere.

    ## Fix
    - **you** compare the stacks: py-spy where it is installed; else Flight Recorder's dumps, by `ncclcheck logs`.

    ## Source
    proc(5); sock_diag(7); the hang was made with real jobs of torch and gloo (another collective, unequal
    batches).
    """
    job = judged.job
    queued = [rank for rank in job.ranks if rank.unread or rank.unsent]
    parts = words.parting(job)
    read = sum(bool(rank.stack) for rank in job.ranks)
    alone = words.elsewhere(job)
    where = words.where([alone] if alone else job.ranks)
    apart = f", {words.rank(alone)} in another place than the others" if alone else ""
    yield fail(
        where,
        f"all {len(job.ranks)} ranks of {job.name} wait{apart}, and no data moved for {job.seconds:.0f} s",
        why="Nobody is left to come: a rank is in another collective, or what was sent did not arrive.",
        owner="job",
        evidence=[
            *(
                seen(
                    f"sockets of {words.rank(process)}",
                    f"{process.unread} bytes unread, {process.unsent} not taken over",
                )
                for process in queued[:2]
            ),
            *parts,
            *words.evidence(job.ranks[:1]),
        ],
        fix=[
            *(
                []
                if read > 1
                else [
                    you(
                        "Compare the lines of all ranks; with py-spy installed this is done here.",
                        "pip install py-spy",
                    )
                ]
            ),
            *words.dumps(job),
        ],
    )
