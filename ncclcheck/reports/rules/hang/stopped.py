"""HNG002: ranks of a running job that a signal or a debugger has stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ncclcheck.probes.facts import LiveProcess
from ncclcheck.reports.judgement.findings import Finding, Remedy, fail, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import Judged
from ncclcheck.reports.subjects.live.words import hang_rule

_MOST = 4  # processes that have a finding each; chosen for a report that fits a screen


@hang_rule("HNG002", "no process of a running job is stopped", "stopped")
def nobody_is_stopped(judged: Judged) -> Iterator[Finding]:
    """
    ## What
    A process of the job is stopped: SIGSTOP, SIGTSTP (Ctrl-Z), a read of the terminal in the background, a
    debugger, or a frozen cgroup (`docker pause`, a suspended step).

    ## Why it matters
    It does nothing until it is continued, and all others wait for it.

    ## Seen as
    setting without effect

    ## How we know
    State T (stopped) or t (traced) in /proc/PID/stat at both looks, or the kernel's function in which processes of
    a frozen cgroup wait (`__refrigerator`, `do_freezer_trap`), or state D in a wait that a signal could end, such
    as that for a futex: from Linux 6.1 on a frozen process stays where it was.

    ## Fix
    - **you** continue it: `kill -CONT PID`, or leave the debugger. Slurm's `scontrol suspend` and a scheduler that
      gangs jobs stop processes too: `scontrol resume`.

    ## Source
    proc(5); signal(7); scontrol(1).
    """
    for alike in _alike(judged.who):
        process = alike[0]
        many = len({other.rank for other in alike}) > 1
        pids = ", ".join(str(other.pid) for other in alike[:8])
        kind = "a process beside it" if process.helper else "pid"
        yield fail(
            words.where(alike),
            f"{words.ranks(alike)} {'are' if many else 'is'} stopped: {_by(process)} ({kind} {pids})",
            why="A stopped process does nothing, and all others wait for it.",
            owner="job",
            evidence=[*words.evidence(alike), *words.rest(judged), *words.after(judged)],
            fix=[_fix(process, pids)],
        )


def _alike(who: Sequence[LiveProcess]) -> list[list[LiveProcess]]:
    """Each alone; where they are many, those together that the same has stopped."""
    if len(who) <= _MOST:
        return [[alone] for alone in who]
    groups: dict[tuple[str, str], list[LiveProcess]] = {}
    for process in who:
        groups.setdefault((process.state, process.wchan), []).append(process)
    return [*groups.values()]


def _by(process: LiveProcess) -> str:
    if process.state == "t":
        return "a debugger holds it"
    return "a signal stopped it" if process.state == "T" else "its cgroup is frozen"


def _fix(process: LiveProcess, pids: str) -> Remedy:
    if process.state == "t":
        return you("Leave the debugger that holds it.", f"grep TracerPid /proc/{process.pid}/status")
    if process.state == "T":
        return you("Continue it, on its host.", f"kill -CONT {pids.replace(',', '')}")
    return you(
        "Let its container or step go on: docker unpause, scontrol resume.", f"cat /proc/{process.pid}/cgroup"
    )
