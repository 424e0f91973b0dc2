"""HNG003: ranks of a running job that wait for a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ncclcheck.probes.facts import LiveProcess
from ncclcheck.reports.judgement.findings import Finding, fail, seen, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import Judged
from ncclcheck.reports.subjects.live.words import hang_rule


@hang_rule("HNG003", "no process of a running job waits for a file that does not come", "storage")
def nobody_waits_for_a_file(judged: Judged) -> Iterator[Finding]:
    """
    ## What
    A process of the job waits for a file, a named pipe, a file lock or a file system, and got no byte between the
    looks.

    ## Why it matters
    It is not in the collective in which the others wait. A process in state D cannot even be killed.

    ## Seen as
    dies

    ## How we know
    At both looks its main thread stood in the same function of the kernel that waits for a file (a named pipe, a
    lock, NFS, FUSE), or a thread of it was in state D; /proc/PID/io counted nothing. The file is the one of the
    system call it was in, where the kernel shows that. Who holds the lock of a file stands in /proc/locks: a rank
    that holds it while it waits itself is named, and not those that wait for it.

    ## Fix
    - **you** look at that file or mount: who should write into the pipe, who holds the lock (`lsof FILE`,
      `lslocks`).
    - **admin** a mount that does not answer: `dmesg` on that host names the server.

    ## Source
    proc(5), on wchan, syscall and io; the hang was made with real jobs of torch and gloo that read a named pipe.
    """
    holders = {live.pid: live for live in [*judged.job.ranks, *judged.job.helpers] if live not in judged.who}
    for pid in sorted({live.holder for live in judged.who} & holders.keys()):
        yield _held(judged, holders[pid], [live for live in judged.who if live.holder == pid])
    for process in judged.who:
        if process.holder in holders:
            continue
        wait = next(iter(process.stuck), "") or process.wchan
        pipe = wait == "wait_for_partner"  # in open(2), until another process opens it too
        what = f"the file {process.file}" if process.file else "a file"
        what = f"another process to open the pipe {process.file}".rstrip() if pipe else what
        what += f", which process {process.holder} has locked" if process.holder else ""
        whose = f"pid {process.pid}" if not process.helper else f"pid {process.pid}, a process beside it"
        yield fail(
            words.where([process]),
            f"{words.rank(process)} waits for {what} ({wait}, {whose})",
            why="It is not in the collective in which the others wait for it.",
            owner="job",
            evidence=[*words.evidence([process]), *words.rest(judged), *words.after(judged)],
            fix=[
                you("Look what should open the other end of that pipe, and whether it was started.")
                if pipe
                else you("Files it has open; a mount that does not answer is for the administrator.",
                         f"ls -l /proc/{process.pid}/fd"),
                words.stacks(process),
            ],
        )  # fmt: skip


def _held(judged: Judged, holder: LiveProcess, waiting: Sequence[LiveProcess]) -> Finding:
    """A rank that has locked a file, and waits for those that wait for the lock."""
    named = next((process.file for process in waiting if process.file), "")
    who, whose = (
        words.rank(holder),
        f"pid {holder.pid}, a process beside it" if holder.helper else f"pid {holder.pid}",
    )
    wait = "waits" if len(waiting) == 1 else "wait"
    return fail(
        words.where([holder]),
        f"{who} has locked {f'the file {named}' if named else 'a file'} for which {words.ranks(waiting)} {wait}, "
        f"and waits itself ({whose})",
        why="Those that wait for the lock do not come to what its holder waits for.",
        owner="job",
        evidence=[
            seen(
                "/proc/locks",
                f"held by pid {holder.pid}, asked for by {', '.join(str(process.pid) for process in waiting)}",
            ),
            *words.evidence([holder, *waiting]),
            *words.after(judged),
        ],
        fix=[
            you("Let no rank wait for others, as in a barrier, while it holds a lock that these need."),
            words.stacks(holder),
        ],
    )
