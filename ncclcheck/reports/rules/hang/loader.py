"""HNG012: ranks of a running job that wait for their data loader."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.reports.judgement.findings import Finding, fail, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import Judged, sleeps, works
from ncclcheck.reports.subjects.live.words import hang_rule


@hang_rule("HNG012", "no rank of a running job waits for its data loader while the others wait for it", "loader")
def nobody_waits_for_its_loader(judged: Judged) -> Iterator[Finding]:
    """
    ## What
    A rank waits for its next batch: its main thread polls for what its loader's workers send, and the others are
    in a collective. Where a worker computes, sleeps or waits for a lock, it is named.

    ## Why it matters
    The others wait for this rank as long as its batch does not come.

    ## How we know
    At both looks its main thread stood in poll, those of the others in a wait for a thread; it has processes that
    use torch and share its environment. CPU time and the function of the kernel of each of those.

    ## Fix
    - **you** see the line of the worker: `py-spy dump --pid PID`; test the dataset alone: `ncclcheck data`.

    ## Source
    proc(5); torch.utils.data, MultiProcessingDataLoader; made with real jobs of torch and gloo whose workers loop,
    sleep, or wait for a lock.
    """
    who, named = words.ranks(judged.who), {process.rank for process in judged.who}
    workers = [helper for helper in judged.job.helpers if helper.rank in named and not helper.orphan]
    workers.sort(
        key=lambda worker: (not works(worker), not sleeps(worker), "futex" not in worker.wchan, worker.pid)
    )
    odd = workers[0] if workers else judged.who[0]
    does = "computes" if works(odd) else "sleeps" if sleeps(odd) else "waits"
    waits = "waits" if len(judged.who) == 1 else "wait"
    yield fail(
        words.where(judged.who),
        f"{who} {waits} for the data loader, whose worker {odd.pid} {does}, while "
        f"{len(judged.others)} others wait",
        why="It is not in the collective in which the others wait for it.",
        owner="job",
        evidence=[
            *words.evidence(judged.who),
            *words.evidence(workers[:2]),
            *words.rest(judged),
            *words.after(judged),
        ],
        fix=[
            words.stacks(odd),
            you("Test the dataset by itself, with its workers.", "ncclcheck data train.py:make_dataset"),
        ],
    )
