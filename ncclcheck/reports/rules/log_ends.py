"""LOG: logs that could not be read to their end, and jobs that were ended from outside."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Logs
from ncclcheck.reports.findings import Finding, State, Where, fine, note, unknown, you
from ncclcheck.reports.logged import cause, lines, log_rule, said, where
from ncclcheck.reports.rule import NothingToJudge, rule
from ncclcheck.reports.rules.log_first import errors

_SIGNALS = {"1": "SIGHUP", "15": "SIGTERM", "10": "SIGUSR1", "12": "SIGUSR2"}


@rule("LOG003", "the logs were read to their end", worst=State.UNKNOWN, over="", commands=("logs",))
def read_to_the_end(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether each file that was named could be opened and read to its end.

    ## Why it matters
    What was not read may hold the first failure.

    ## How we know
    What the operating system said when the file was read; a gzip file that is cut off; a pipe that brought
    nothing; files of which all are empty. What was read of a file before its end is judged.

    ## Fix
    - **you** give the files again, or make them readable for your user.

    ## Source
    open(2), read(2), gzip(1).
    """
    logs = cluster.measurements.logs
    if logs is None:
        raise NothingToJudge("no log was read")
    bad = [file for file in logs.files if file.problem]
    for folder in (file.name for file in logs.files if file.empty_folder):
        yield note(Where(), f"{folder} holds no file", why="A rank that was killed leaves no dump.")
    for file in bad[:20]:
        yield _unread(f"{file.name}: {file.problem}" + (f" (after {file.lines} lines)" if file.lines else ""))
    total = sum(file.bytes for file in logs.files)
    if not bad and not total and logs.flight is None:
        yield _unread("there is nothing in " + ", ".join(file.name for file in logs.files[:3]))
    elif not bad:
        read = sum(not file.empty_folder for file in logs.files)
        yield fine(Where(), f"{read} files, {total / 1e6:.1f} MB")


def _unread(what: str) -> Finding:
    return unknown(
        Where(),
        what,
        why="What was not read may hold the first failure.",
        owner="job",
        fix=[you("Give the file again, or make it readable for your user.")],
    )


@log_rule("LOG006", "the job was not ended from outside")
def not_ended_from_outside(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A job that Slurm's time limit, or a signal to torchrun, has ended.

    ## Why it matters
    Then nothing in the job failed, and what its ranks print afterwards says nothing.

    ## How we know
    Slurm's "CANCELLED ... DUE TO TIME LIMIT"; torchrun's "Received SIGTERM death signal": a time limit, `scancel`,
    a preemption, or a lost ssh session (SIGHUP). A SIGINT is Ctrl-C, and a note.

    ## Fix
    - **you** ask for more time (`sbatch --time`), write checkpoints before it is over
      (`sbatch --signal=B:USR1@300`); start long jobs by sbatch, or within tmux.
    - **admin** `sacct -j JOB -o State,ExitCode,Elapsed,Timelimit` tells who ended it.

    ## Source
    sbatch(1), scancel(1), sacct(1); PyTorch documentation, torchrun; signal(7).
    """
    if late := said(logs, "time-limit"):
        yield cause(
            late,
            "Slurm ended the job at its time limit",
            why="Nothing in the job failed; what ranks print afterwards says nothing.",
            owner="job",
            fix=[
                you(
                    "Confirm, and ask for more time.",
                    "sacct -j JOB -o State,Elapsed,Timelimit",
                    "sbatch --time=2-0",
                )
            ],
        )
    elif ordered := [] if errors(logs) else said(logs, "ended-by-order"):
        signal = ordered[0].fields.get("signal", "SIGINT")
        if signal in ("SIGINT", "2"):
            yield note(where(ordered[0]), "somebody ended the job with Ctrl-C (SIGINT)", evidence=lines(ordered))
            return
        yield cause(
            ordered,
            f"torchrun was ended from outside, by {_SIGNALS.get(signal, signal)}: a time limit, scancel, a "
            "preemption or a lost session",
            why="Nothing in the job failed; what ranks print afterwards says nothing.",
            owner="job",
            state=State.WARN,
            fix=[you("Confirm: who ended it.", "sacct -j JOB -o State,ExitCode,Elapsed,Timelimit")],
        )
