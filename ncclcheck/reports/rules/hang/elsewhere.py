"""HNG010: ranks of a running job that wait for something that is no rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ncclcheck.probes.facts import LiveProcess
from ncclcheck.reports.judgement.findings import Finding, fail, seen, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import CHILD, Judged, sleeps, works
from ncclcheck.reports.subjects.live.words import hang_rule


@hang_rule("HNG010", "no rank of a running job waits elsewhere while the others wait for it", "elsewhere")
def nobody_waits_elsewhere(judged: Judged) -> Iterator[Finding]:
    """
    ## What
    A rank waits, and not in the collective in which the others wait: for a program that it has started, for an
    answer from the network, for input (a debugger left in the code), for a reader of its output, for a lock or a
    queue of its own, or in another call, such as a barrier.

    ## Why it matters
    The others wait for it as long as it waits.

    ## How we know
    At both looks its main thread stood in another function of the kernel than those of most ranks (do_wait: a
    child; a socket, whose far end is named). Or it stood in the same, and has sent nothing since the call before,
    while all others have sent something later, and it was sent something since: the ages of the connections' last
    data, by sock_diag(7), to 12 ms.

    ## Fix
    - **you** see the line of the program: `py-spy dump --pid PID`; look after what it waits for.

    ## Source
    proc(5), on wchan and syscall; tcp(7), tcpi_last_data_sent; made with real jobs of torch and gloo (a child
    process, a download, a lock, a queue).
    """
    who, process = words.ranks(judged.who), judged.who[0]
    children = [child for child in judged.job.helpers if child.parent == process.pid and not child.orphan]
    waits = "waits" if len(judged.who) == 1 else "wait"
    yield fail(
        words.where(judged.who),
        f"{who} {waits} {_for(process, children)} while {len(judged.others)} others wait (pid {process.pid})",
        why="It is not in the collective in which the others wait for it.",
        owner="job",
        evidence=[
            *words.evidence(judged.who),
            *(
                seen(f"/proc/{child.pid}, its child", f"{words.does(child)}: {child.command[:80]}")
                for child in children[:2]
            ),
            *words.rest(judged),
            *words.after(judged),
            *words.parting(judged.job),
        ],
        fix=[words.stacks(process), you(words.LATER, "ncclcheck hang --seconds 60")],
    )


# Part of a function of the kernel -> what a thread waits for in it (Linux 6.18; ep_poll is an older name).
_WAITS = {
    "futex": "outside their call (a lock or queue of its own, or another call)",
    "sigtimedwait": "for a signal",
    "sigsuspend": "for a signal",
    "pipe_read": "for what a process writes that it has started",
    "accept": "for somebody to connect to it (a remote debugger, a server of its own)",
    "unix_stream": "for an answer over a Unix socket (a daemon beside it)",
    "epoll": "for an event of its own (asyncio, a server)",
    "ep_poll": "for an event of its own (asyncio, a server)",
}


def _for(process: LiveProcess, children: Sequence[LiveProcess]) -> str:
    if process.wchan == CHILD:
        child = next((child for child in children if works(child) or sleeps(child)), None)
        does = "" if child is None else "computes" if works(child) else "sleeps"
        return "for a child process" if child is None else f"for its child {child.pid}, which {does},"
    if process.asks:
        return f"for an answer of {process.asks}"
    if process.stream == "stdin":
        return "for input on its stdin, as in a debugger (pdb)"
    if process.stream:
        return f"to write to its {process.stream}, a pipe from which nobody reads,"
    return next(
        (words_ for part, words_ in _WAITS.items() if part in process.wchan),
        f"in {process.wchan or 'a call'}, for something that is no rank,",
    )
