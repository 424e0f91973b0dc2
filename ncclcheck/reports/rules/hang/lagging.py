"""HNG013: a rank of an advancing job for which the others wait in every step."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ncclcheck.reports.judgement.findings import Finding, State, note, seen, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import Judged
from ncclcheck.reports.subjects.live.words import hang_rule

# Shares of the time. With 24 samples in 6 s a share is known to 0.2 (two standard deviations): these do not meet.
_LAGS, _WAIT = 0.6, 0.3


@hang_rule("HNG013", "no rank of a job that advances keeps the others waiting", "advances", worst=State.NOTE)
def nobody_lags(judged: Judged) -> Iterator[Finding]:
    """
    ## What
    The job advances, and one rank does something of its own for most of the time, in which all others wait.

    ## Why it matters
    A step takes as long as that rank does; the others' cores and GPUs idle.

    ## How we know
    Four samples a second of what each main thread does: one computes, reads or sleeps in more than 60 % of them,
    every other in less than 30 %. Jobs that use CUDA are not judged: there the main thread says little.

    ## Fix
    - **you** see what it does: `py-spy dump --pid PID`, several times; `ncclcheck bench` measures its host.

    ## Source
    proc(5), on wchan; made with real jobs of torch and gloo with one slow rank.
    """
    ranks = sorted(judged.job.ranks, key=lambda rank: rank.apart)
    if len(ranks) < 2 or any("cuda" in rank.libraries for rank in ranks):
        return
    slow, rest = ranks[-1], ranks[:-1]
    if slow.apart < _LAGS or rest[-1].apart > _WAIT:
        return
    phase = "computes" if slow.cpu > slow.apart / 2 else "sleeps or reads"
    others = median(process.apart for process in rest)
    yield note(
        words.where([slow]),
        f"{words.rank(slow)} keeps {len(rest)} others waiting: it {phase} for {slow.apart:.0%} of the time, "
        f"they work for {others:.0%} (pid {slow.pid})",
        evidence=[
            seen(
                "samples of the main threads",
                f"{words.rank(slow)} {slow.apart:.0%}, the others at most {rest[-1].apart:.0%}",
            )
        ],
        fix=[you("See what it does, several times.", f"py-spy dump --pid {slow.pid}")],
    )
