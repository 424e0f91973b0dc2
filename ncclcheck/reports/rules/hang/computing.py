"""HNG005: ranks of a running job that compute while the others wait."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.reports.judgement.findings import Finding, fail, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import Judged
from ncclcheck.reports.subjects.live.words import hang_rule


@hang_rule("HNG005", "no rank of a running job computes alone while the others wait", "computing")
def nobody_computes_alone(judged: Judged) -> Iterator[Finding]:
    """
    ## What
    A rank computes on the CPU while all others only wait, for the whole time between the looks.

    ## Why it matters
    It is not in the collective in which the others wait: an endless loop, a longer dataset, an evaluation that
    rank 0 does alone. A long step of that rank alone looks the same from outside; whether it ends is not seen.

    ## How we know
    CPU time by /proc/PID/stat: more than half a core, all others below a tenth; the connections carried no
    data, and its files less than 1 MB/s. How many of its threads run is reported. It holds Python's lock where
    another of its threads asks for that lock every 5 ms and does not get it.

    ## Fix
    - **you** look again for longer (`--seconds 60`), and see the line of the program: `py-spy dump --pid PID`.

    ## Source
    proc(5); the hang was made with real jobs of torch and gloo.
    """
    who = words.ranks(judged.who)
    lock = " in C and holds Python's lock" if all(process.lock_waits for process in judged.who) else ""
    yield fail(
        words.where(judged.who),
        f"{who} compute{'s' if len(judged.who) == 1 else ''}{lock} for {judged.job.seconds:.0f} s while "
        f"{len(judged.others)} others wait (pid {judged.who[0].pid})",
        why="It is not in the collective in which the others wait: an endless loop, or a step of its own.",
        owner="job",
        evidence=[
            *words.evidence(judged.who),
            *words.rest(judged),
            *words.after(judged),
            *words.parting(judged.job),
        ],
        fix=[words.stacks(judged.who[0]), you(words.LATER, "ncclcheck hang --seconds 60")],
    )
