"""HNG002: ranks of a running job that a signal or a debugger has stopped."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.reports.judgement.findings import Finding, fail, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import Judged
from ncclcheck.reports.subjects.live.words import hang_rule


@hang_rule("HNG002", "no process of a running job is stopped", "stopped")
def nobody_is_stopped(found: Judged) -> Iterator[Finding]:
    """
    ## What
    A process of the job is stopped: SIGSTOP, SIGTSTP (Ctrl-Z), a read of the terminal in the background, or a
    debugger.

    ## Why it matters
    It does nothing until it is continued, and all others wait for it.

    ## How we know
    State T (stopped) or t (traced) in /proc/PID/stat at both looks.

    ## Fix
    - **you** continue it: `kill -CONT PID`, or leave the debugger. Slurm's `scontrol suspend` and a scheduler that
      gangs jobs stop processes too: `scontrol resume`.

    ## Source
    proc(5); signal(7); scontrol(1).
    """
    for one in found.who:
        by = "a debugger holds it" if one.state == "t" else "a signal stopped it"
        kind = "a process beside it" if one.helper else "pid"
        fix = (
            you("Leave the debugger that holds it.", f"grep TracerPid /proc/{one.pid}/status")
            if one.state == "t"
            else you("Continue it.", f"kill -CONT {one.pid}")
        )
        yield fail(
            words.where([one]),
            f"rank {one.rank} is stopped: {by} ({kind} {one.pid})",
            why="A stopped process does nothing, and all others wait for it.",
            owner="job",
            evidence=[*words.evidence([one]), *words.rest(found)],
            fix=[fix],
        )
