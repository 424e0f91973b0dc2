"""HNG003: ranks of a running job that wait for a file."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.reports.judgement.findings import Finding, fail, you
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
    system call it was in, where the kernel shows that.

    ## Fix
    - **you** look at that file or mount: who should write into the pipe, who holds the lock (`lsof FILE`,
      `lslocks`).
    - **admin** a mount that does not answer: `dmesg` on that host names the server.

    ## Source
    proc(5), on wchan, syscall and io; the hang was made with real jobs of torch and gloo that read a named pipe.
    """
    for one in found.who:
        wait = next(iter(one.stuck), "") or one.wchan
        what = f"the file {one.file}" if one.file else "a file"
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
