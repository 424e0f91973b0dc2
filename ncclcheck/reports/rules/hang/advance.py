"""HNG008: what a running job does where nobody holds it up, or where that cannot be told."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, State, Where, fine, note, seen
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import Judged, judged_jobs

_CANNOT_TELL = {
    "busy": "all compute and no data moved for {s:.0f} s: a long step, or waiting that burns CPU",
    "dark": "no connection of it carries data here: whether it advances cannot be told from /proc",
    "unclear": "some ranks compute, some wait, no data moved for {s:.0f} s: nobody stands out",
    "partial": "the {n} ranks that were seen wait for others, and {absent} were not seen: look at their hosts too",
    "ended": "it has ended between the looks: its log says why (ncclcheck logs)",
    "starting": "it is still starting: its youngest process is {age:.0f} s old",
}


@rule("HNG008", "it is seen whether a running job advances", worst=State.NOTE, over="", commands=("hang",))
def it_advances(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The job moves data, or reads and writes files while some ranks wait: nobody holds it up. A note where that
    cannot be told: all ranks compute, or nothing of it can be seen from the host's side.

    ## Why it matters
    Between GPUs of one node NCCL moves data without any connection, and a thread that waits for a GPU burns a
    core. Nobody is accused for that.

    ## How we know
    Bytes that the connections of each rank moved between the looks (without the one to torch's store), CPU time
    and /proc/PID/io.

    ## Fix
    - **you** look again for longer: `ncclcheck hang --seconds 60`.

    ## Source
    proc(5); sock_diag(7).
    """
    for found in judged_jobs(cluster):
        yield from _told(found)


def _told(found: Judged) -> Iterator[Finding]:
    job, at = found.job, Where(node=found.job.ranks[0].host)
    if found.kind == "advances":
        moved = sum(one.moved or 0 for one in job.ranks)
        yield fine(at, f"{job.name} advances", seen("bytes moved", f"{moved:,} in {job.seconds:.0f} s"))
    elif found.kind == "works":
        moved = sum(one.read + one.written for one in found.who)
        yield fine(
            at, f"{job.name} advances: {words.ranks(found.who)} reads or writes files", seen("bytes", f"{moved:,}")
        )
    elif found.kind == "alone":
        yield fine(at, f"{job.name} has one rank only: nobody waits for another")
    elif found.kind in _CANNOT_TELL:
        age = min(one.age_s for one in job.ranks)
        told = _CANNOT_TELL[found.kind].format(
            s=job.seconds, age=age, n=len(job.ranks), absent=words.numbered(job.absent)
        )
        yield note(at, f"{job.name}: {told}", evidence=words.evidence(job.ranks[:1]), fix=[])
