"""HNG004: ranks of a running job that sleep while the others wait."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.reports.judgement.findings import Finding, fail, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import Judged
from ncclcheck.reports.subjects.live.words import hang_rule


@hang_rule("HNG004", "no rank of a running job sleeps while the others wait", "sleeping")
def nobody_sleeps(judged: Judged) -> Iterator[Finding]:
    """
    ## What
    The main thread of a rank is in a sleep of a fixed time, again and again or for long, while the others only
    wait.

    ## Why it matters
    It is not in the collective in which the others wait: a loop that polls for something that does not come, a
    retry with pauses, a `time.sleep`, or a call into C that sleeps. It holds Python's lock where another of
    its threads asks for that lock every 5 ms and does not get it.

    ## How we know
    At both looks the kernel had its main thread in hrtimer_nanosleep; it used no CPU, nobody moved data, and no
    other rank sleeps so.

    ## Fix
    - **you** see the line of the program: `py-spy dump --pid PID`; it says too which thread holds Python's lock.

    ## Source
    proc(5), on wchan; the hang was made with real jobs of torch and gloo.
    """
    who = words.ranks(judged.who)
    lock = " in C and holds Python's lock" if all(process.lock_waits for process in judged.who) else ""
    yield fail(
        words.where(judged.who),
        f"{who} sleep{'s' if len(judged.who) == 1 else ''}{lock} while {len(judged.others)} others wait "
        f"(pid {judged.who[0].pid})",
        why="It is not in the collective in which the others wait for it.",
        owner="job",
        evidence=[
            *words.evidence(judged.who),
            *words.rest(judged),
            *words.after(judged),
            *words.parting(judged.job),
        ],
        fix=[words.stacks(judged.who[0]), you(words.LATER, "ncclcheck hang --seconds 60")],
    )
