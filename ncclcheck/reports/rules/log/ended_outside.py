"""LOG006: jobs that a time limit, a preemption, a signal or their user ended."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.probes.facts.log.fields import first_named
from ncclcheck.reports.judgement.findings import Finding, note, unknown, you
from ncclcheck.reports.rules.log.ends import GONE_ON, ask_where_it_stands
from ncclcheck.reports.rules.log.first import SENT, errors, hung_up, terminated
from ncclcheck.reports.subjects.logs.logged import (
    cause,
    events_of,
    full_disk,
    in_order,
    lines,
    log_rule,
    own_exceptions,
    where,
)

_SACCT = "sacct -j JOB -o State,ExitCode,Elapsed,Timelimit"
_OUTLIVES = you(
    "Start it so that it outlives the login: by sbatch, within tmux, or in a session of its own; torchrun sets a "
    "handler of SIGHUP itself, so that nohup does not keep it.",
    "tmux new -d 'torchrun ...'",
    "setsid torchrun ... </dev/null >job.log 2>&1 &",
)
_WHERE_IT_STANDS = you(
    "If it hung: see where each rank stands, in the next run.",
    "py-spy dump --pid PID",
    "export NCCL_DEBUG=INFO TORCH_FR_BUFFER_SIZE=2000",
)
_IN_LAUNCHER = re.compile(
    r"torch/distributed/(?:elastic|run|launch)|^(?:threading|subprocess|selectors"
    r"|signal)\.py|multiprocessing/"
)
_COLLECTIVE = re.compile(
    r"distributed_c10d|rendezvous\.py|torch/distributed|_sync|barrier|all_?reduce"
    r"|all_?gather|broadcast"
)
_TASK_FAILED = (
    "srun-task-exit",
    "worker-failed",
    "worker-signalled",
    "root-cause-exit",
    "oom-killed",
    "ended-badly",
)
_MOST_RAISED = 160  # characters of an exception: two lines of a terminal
_SOON = 30  # lines: the traceback of an interrupt; a next training prints more at its start
_SERVES = re.compile(r"startup complete|HTTP/|prompt throughput|(?:Decode|Prefill) batch")
_CANCELLED = re.compile(
    r"(?P<what>JOB|STEP) (?P<job>[\w.+]{1,30}) ON (?P<node>\S{1,200}) CANCELLED AT \S{1,40} \*\*\*"
)
# vLLM's handlers of either signal.
_HANDLED = re.compile(r"KeyboardInterrupt: .*terminated|.*\[shutdown\] API server: shutdown triggered")
_SIGNALS = {
    **{"1": "SIGHUP", "2": "SIGINT", "15": "SIGTERM", "10": "SIGUSR1", "12": "SIGUSR2"},
    **{"terminated": "SIGTERM", "hangup": "SIGHUP"},
}


@log_rule("LOG006", "the job was not terminated from outside", unfinished=True)
def not_ended_from_outside(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A job that was ended by the time limit of Slurm, PBS or LSF, a preemption or a signal to torchrun.

    ## Why it matters
    Then nothing in the job failed, and what its ranks print afterwards says nothing.

    ## How we know
    Slurm's "CANCELLED ... DUE TO TIME LIMIT", "DUE TO PREEMPTION" or "DUE TO JOB REQUEUE"; PBS's "walltime N
    exceeded limit", LSF's TERM_RUNLIMIT; torchrun's "Received
    SIGTERM death signal": a time limit, `scancel`, a preemption, or a lost ssh session (SIGHUP). A SIGINT is
    Ctrl-C: a note where the work was done or a server was stopped; else it was not finished, and without a step
    before it the job may have hung, which its user saw. Slurm's "JOB ... CANCELLED AT" without a reason is
    scancel,
    by a person or a program; of a step it is Slurm's answer to a task that failed, where one did.

    ## Fix
    - **you** ask for more time (`sbatch --time`), write checkpoints before it is over
      (`sbatch --signal=B:USR1@300`); start long jobs by sbatch, or within tmux.
    - **admin** `sacct -j JOB -o State,ExitCode,Elapsed,Timelimit` shows who ended it.

    ## Source
    sbatch(1), scancel(1), sacct(1); PyTorch documentation, torchrun; signal(7).
    """
    late = events_of(logs, "time-limit")
    if late and _was_done(logs, late):
        what = f"{_batch_system(late[0])[0]} ended the job at its time limit, after its work was done"
        yield note(where(late[0]), what, evidence=lines(late))
    elif late:
        name, commands = _batch_system(late[0])
        yield cause(
            late,
            f"{name} ended the job at its time limit",
            why="Nothing in the job failed; what ranks print afterwards says nothing.",
            owner="job",
            fix=[you("Confirm, and ask for more time.", *commands)],
        )
    elif taken := events_of(logs, "preempted"):
        yield cause(
            taken,
            "Slurm took the job's nodes for another one (preemption)"
            if taken[0].fields["why"] == "PREEMPTION"
            else "Slurm put the job back into its queue",
            why="Nothing in the job failed; what ranks print afterwards says nothing.",
            owner="job",
            fix=[
                you("Confirm.", "sacct -j JOB -o State,Partition,QOS,Elapsed"),
                you(
                    "Let it be queued again and go on from its last checkpoint; a warning comes before the end.",
                    "sbatch --requeue --signal=B:USR1@120 job.sh",
                ),
            ],
        )
    elif cancelled := _cancelled(logs):
        full = [event for event in full_disk(logs) if event.order < cancelled[-1].order]
        after = "the job was cancelled after its disk was full (LOG128)"
        yield note(where(full[0]), after, evidence=lines(cancelled[-1:])) if full else _by_scancel(logs, cancelled)
    elif ordered := [] if errors(logs) else events_of(logs, "ended-by-order") or hung_up(logs) or terminated(logs):
        signal = _signal(ordered[0])
        if signal == "SIGINT":
            yield _interrupted(logs, ordered)
        elif _was_done(logs, ordered):
            yield note(where(ordered[0]), f"{_who(ordered[0])} was ended by {signal}", evidence=lines(ordered))
        else:
            yield _by_signal(ordered, signal)


def _batch_system(event: LogEvent) -> tuple[str, tuple[str, str]]:
    """Who ended it, and the commands that show and lengthen the limit."""
    if "TERM_RUNLIMIT" in event.text:
        return "LSF", ("bhist -l JOB", "bsub -W 48:00 ...")
    if "CANCELLED" in event.text:
        return "Slurm", ("sacct -j JOB -o State,Elapsed,Timelimit", "sbatch --time=2-0")
    return "PBS", ("qstat -xf JOB", "qsub -l walltime=48:00:00 ...")


def _signal(event: LogEvent) -> str:
    """The signal that a job was ended by, as the line says; a line that names none tells of Ctrl-C."""
    name = first_named(event.fields, "signal", "closing", "caught", "own", "drained", "shell", "zsh")
    if "step" in event.fields:
        return "SIGTERM"
    if sent := SENT.get(event.fields.get("exitcode", event.fields.get("name", ""))):
        return sent
    return _SIGNALS.get(name.lower(), name) or "SIGINT"


def _who(event: LogEvent) -> str:
    return "torchrun" if {"signal", "closing"} & {*event.fields} else "the job"


def _by_signal(ordered: list[LogEvent], signal: str) -> Finding:
    lost = signal == "SIGHUP"
    return cause(
        ordered,
        f"{_who(ordered[0])} was ended by SIGHUP: the session that started it was lost"
        if lost
        else f"{_who(ordered[0])} was ended from outside, by {signal}: a time limit, scancel, a preemption, kill "
        "or a lost session",
        why="Nothing in the job failed; what ranks print afterwards says nothing.",
        owner="job",
        fix=[_OUTLIVES] if lost else [you("Confirm: who ended it.", _SACCT)],
    )


def _cancelled(logs: Logs) -> list[LogEvent]:
    """Where Slurm cancelled the job without a reason, and nothing had failed before."""
    events = [event for event in in_order(events_of(logs, "step-cancelled")) if _CANCELLED.search(event.text)]
    if errors(logs) or not events:
        return []
    whole = [event for event in events if "JOB " in event.text]
    failed = [event for event in events_of(logs, *_TASK_FAILED) if event.fields.get("how") != "Terminated"]
    return whole or ([] if failed else events)


def _by_scancel(logs: Logs, cancelled: list[LogEvent]) -> Finding:
    """The last one counts: a log may hold several jobs."""
    above = [event for event in in_order(own_exceptions(logs)) if event.order < cancelled[-1].order]
    before = "nothing in this attempt failed before it; what ranks print afterwards says nothing."
    if above:
        raised = " ".join(above[0].text.split())[:_MOST_RAISED]
        before = f"the work went on after an exception above it (line {above[0].line}): {raised}"
    match = _CANCELLED.search(cancelled[-1].text)
    job, node = (match["job"], match["node"]) if match else ("", "")
    return cause(
        cancelled[-1:],
        f"Slurm cancelled job {job.partition('.')[0]} on {node}, "
        "by scancel (a user, an administrator or a program)",
        why=f"Slurm gives no reason (time limit, preemption, node failure); {before}",
        owner="job",
        fix=[
            you(
                "Confirm: who cancelled it (CANCELLED by UID).",
                "sacct -j JOB -o State%30,ExitCode,Elapsed,Timelimit",
            )
        ],
    )


def _was_done(logs: Logs, ordered: list[LogEvent]) -> bool:
    """Whether a server was stopped, or what ended well right before: a script may begin its next training."""
    done, served = events_of(logs, "ended-well"), events_of(logs, "work-goes-on", "ended-well")
    last = max(event.order for event in ordered)
    return any(_SERVES.search(event.text) for event in served) or any(event.order > last - _SOON for event in done)


def _interrupted(logs: Logs, ordered: list[LogEvent]) -> Finding:
    """By Ctrl-C: of work that was done or a server it is only worth knowing; else it was not finished, or hung."""
    handled = any(_HANDLED.match(event.text) for event in ordered)
    what = (
        "the job was stopped from outside, by Ctrl-C or kill (SIGINT or SIGTERM)"
        if handled
        else "the job was stopped by its user, with Ctrl-C (SIGINT)"
    )
    if _was_done(logs, ordered):
        return note(where(ordered[0]), what, evidence=lines(ordered))
    if events_of(logs, *GONE_ON):
        return cause(
            ordered,
            f"{what}; it worked until then, and nothing failed before",
            why="The work was not finished: its end is not in the log.",
            owner="job",
            fix=[you("Start it anew, from its last checkpoint where there is one.")],
        )
    stood = [event for event in ordered if "raised_at" in event.fields and not _IN_LAUNCHER.search(_stood(event))]
    if not stood and handled:  # a server that may have served, as it is stopped every day
        return unknown(
            where(ordered[0]),
            f"{what}; whether it hung before is not in these lines",
            why="No step, result or clean exit is logged before it.",
            owner="job",
            evidence=lines(ordered),
            fix=[_WHERE_IT_STANDS, ask_where_it_stands(logs)],
        )
    if not stood:
        return cause(
            ordered,
            f"{what}; whether it hung before is not in these lines",
            why="No step, result or clean exit is logged before it.",
            owner="job",
            fix=[_WHERE_IT_STANDS, ask_where_it_stands(logs)],
        )
    place, within = stood[0].fields["raised_at"], stood[0].fields.get("raised_in", "")
    waited = f"{place}, in {within}" if within else place
    return cause(
        stood,
        f"{what}; it stood at {waited}",
        why="No step, result or clean exit is logged before it. A torch.distributed call waits for all ranks: one "
        "that is missing or unreachable blocks all others."
        if _COLLECTIVE.search(waited)
        else "No step, result or clean exit is logged before it.",
        owner="job",
        fix=[_WHERE_IT_STANDS, ask_where_it_stands(logs)],
    )


def _stood(event: LogEvent) -> str:
    return event.fields.get("raised_in") or event.fields["raised_at"]
