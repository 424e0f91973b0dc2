"""HNG003: ranks of a running job that wait for a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ncclcheck.probes.facts import LiveProcess
from ncclcheck.reports.judgement.findings import Finding, fail, seen, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import Judged
from ncclcheck.reports.subjects.live.words import hang_rule


@hang_rule("HNG003", "no process of a running job waits for a file that does not come", "storage")
def nobody_waits_for_a_file(found: Judged) -> Iterator[Finding]:
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
    holders = {one.pid: one for one in [*found.job.ranks, *found.job.helpers] if one not in found.who}
    for pid in sorted({one.holder for one in found.who} & holders.keys()):
        yield _held(found, holders[pid], [one for one in found.who if one.holder == pid])
    for one in found.who:
        if one.holder in holders:
            continue
        wait = next(iter(one.stuck), "") or one.wchan
        what = f"the file {one.file}" if one.file else "a file"
        what += f", which process {one.holder} has locked" if one.holder else ""
        whose = f"pid {one.pid}" if not one.helper else f"pid {one.pid}, a process beside it"
        yield fail(
            words.where([one]),
            f"{words.rank(one)} waits for {what} ({wait}, {whose})",
            why="It is not in the collective in which the others wait for it.",
            owner="job",
            evidence=[*words.evidence([one]), *words.rest(found), *words.after(found)],
            fix=[
                you("Files it has open; a mount that does not answer is for the administrator.",
                    f"ls -l /proc/{one.pid}/fd"),
                words.stacks(one),
            ],
        )  # fmt: skip


def _held(found: Judged, holder: LiveProcess, waiting: Sequence[LiveProcess]) -> Finding:
    """A rank that has locked a file, and waits for those that wait for the lock."""
    named = next((one.file for one in waiting if one.file), "")
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
                f"held by pid {holder.pid}, asked for by {', '.join(str(one.pid) for one in waiting)}",
            ),
            *words.evidence([holder, *waiting]),
            *words.after(found),
        ],
        fix=[
            you("Let no rank wait for others, as in a barrier, while it holds a lock that these need."),
            words.stacks(holder),
        ],
    )
