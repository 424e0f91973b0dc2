"""LOG: whether the job in a log came to its end, and what went wrong first."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.judgement.findings import (
    Finding,
    State,
    Where,
    admin,
    fine,
    seen,
    warn,
    you,
)
from ncclcheck.reports.rules.log.nccl_errno import SYSTEM
from ncclcheck.reports.rules.log.nccl_words import WARNINGS, meaning
from ncclcheck.reports.subjects.logs.ending import (
    IMPORTS,
    UPMOST,
    Ending,
    came_through,
    dealt_with,
    died,
    gave_up,
    left_in_order,
    of_items,
)
from ncclcheck.reports.subjects.logs.logged import cause, events_of, in_order, lines, log_rule, root_cause
from ncclcheck.reports.subjects.logs.start.left import first_to_leave
from ncclcheck.reports.subjects.logs.words import meanings
from ncclcheck.reports.subjects.logs.words.exceptions import of_words
from ncclcheck.reports.subjects.logs.words.unexplained import (
    ENDS_NO_JOB,
    behind,
    last_words,
    of_nccl,
    only_services,
    unexplained,
)
from ncclcheck.reports.subjects.logs.words.wording import (
    BESIDE,
    FAULT_TOLD,
    SAY_OF_WHY,
    advice,
    before,
    of_a_fault,
    quoted,
    tells_most,
    tells_why,
    understood,
    words,
)

_ENDED = (
    "worker-failed",
    "worker-signalled",
    "srun-task-exit",
    "nccl-warning",
    "nccl-cuda-failure",
    "watchdog-timeout",
    "tests-failure",
)
_ONLY_ENDED = ("worker-failed", "worker-signalled", "srun-task-exit")  # by whom, and not of what
_SIGHUP, _SIGINT, _SIGTERM = "1", "2", "15"
# What somebody sends to a process: as an exit code, and as torch's spawn names it.
SENT = {"-15": "SIGTERM", "SIGTERM": "SIGTERM", "-2": "SIGINT", "SIGINT": "SIGINT"}
_CAUGHT = ("python-error", "nccl-warning", "nccl-cuda-failure")  # what a program can go on after
_DRAWS = ("wandb", "mlflow", "tensorboard", "comet_ml", "neptune", "swanlab", "clearml")  # packages
_TELLS = ("mpi-box", "complaint", "explains")  # also of a mild level, where nothing else says anything
_NO_CAUSE = ENDS_NO_JOB | {*meanings.HARMLESS}
# What the system answers to a call, as a library prints it in a line of its own below the call.
_ANSWER = re.compile(r"(?i)\b(?:connection (?:refused|timed out|reset)|no route to host|network is unreachable)\b")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\[[0-9a-f:]{4,45}\]|\b[a-z][\w.-]{1,80}:\d{2,5}\b")
_BETWEEN = 2  # lines from a call to its answer: chosen, boxes of Open MPI have one line for each
_LINES = 10  # other ranks print a little longer


@derived
def errors(logs: Logs) -> list[LogEvent]:
    """Lines that tell of a failure and do not merely follow from another, the first first."""
    events = in_order(event for event in logs.events if _is_error(event))
    asked = min((event.order for event in events_of(logs, "ended-by-order") if "srun" in event.text), default=None)
    if asked is not None:  # what Slurm then ends, it was told to end
        events = [event for event in events if event.sign != "srun-task-exit" or event.order < asked]
    ending = Ending(logs)
    trained = ending.trained
    if only_services(logs):
        events = [event for event in events if not meanings.of_a_service(event)]
    events = [event for event in events if event.sign not in _CAUGHT or not ending.caught(event)]
    of_samples = of_items(logs)
    events = [event for event in events if (event.file, event.line) not in of_samples]
    events = [
        event
        for event in events
        if not meanings.of_a_thread(event) or event.line < trained.get(event.file, event.line + 1)
    ]
    events = [event for event in events if not _went_on_itself(logs, event, events)]
    if left_in_order(logs):
        events = [event for event in events if event.sign != "nccl-warning"]
    return [event for event in events if not meanings.tells_of_a_risk(event)] or events


def _went_on_itself(logs: Logs, event: LogEvent, events: list[LogEvent]) -> bool:
    """Whether an exception was only printed, for one that came through the whole program stands below it.

    It has no stack of its own, was an import's, or its program says what it did about it.
    """
    if event.sign != "python-error" or "chained" in event.fields:
        return False
    kind = event.fields.get("type", "")
    imported = kind.rpartition(".")[2] in IMPORTS
    mild = imported or "raised_at" not in event.fields or dealt_with(logs, event)
    return mild and any(
        "main" in exception.fields
        and exception.file == event.file
        and exception.line > event.line
        and exception.fields.get("type", "") != kind
        and event.rank in (None, exception.rank)
        for exception in events
    )


def hung_up(logs: Logs) -> list[LogEvent]:
    """torchrun's own end by SIGHUP: its session was lost. By SIGTERM it may end since another node failed.

    It hands on the signal that it got itself; SIGTERM is also what it ends the others with when one failed.
    """
    ended = [event for event in events_of(logs, "signal-exception") if event.fields.get("signal") == _SIGHUP]
    handed_on = events_of(logs, "sigterm-to-peers")
    return ended or [event for event in handed_on if event.fields.get("closing") in ("SIGHUP", "SIGINT")]


def terminated(logs: Logs) -> list[LogEvent]:
    """A process that SIGTERM or SIGINT ended before any other failed: nobody of the job had a reason to."""
    events = events_of(logs, "root-cause-exit", "launcher-return-code", "spawned-signalled")
    return [event for event in events if event.fields.get("exitcode", event.fields.get("name")) in SENT]


def _is_error(event: LogEvent) -> bool:
    if _means_nothing(event):
        return False
    if event.fields.get("signal") in (_SIGTERM, _SIGINT) or event.fields.get("exitcode") in SENT:
        return False
    if event.fields.get("how") == "Terminated":  # by SIGTERM: Slurm ends the others so, and what is cancelled
        return False
    return event.sign in _ENDED or (event.sign == "python-error" and not meanings.follows(event))


@log_rule("LOG001", "the log shows no failure", symptom=True)
def nothing_failed(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Whether any line shows that a process failed, and which one was the first: by the clock of the lines where
    all have one, else by their order in the files.

    ## Why it matters
    When one rank fails, all others fail seconds later, with hundreds of lines that name each other. The line to
    read is the first warning of the rank that failed first.

    ## How we know
    NCCL's warnings, torch's errors, exceptions of Python, exit codes reported by torchrun and Slurm. Lines that
    follow from the failure of another process ("Connection closed by remote peer", "Proxy Call failed",
    SIGTERM, exit code -15) are never taken for the first failure. Where only such lines are there, the process
    that failed has written to a log that was not given. A line with a word of failure that nothing here knows
    (an error, an exit code, a signal, an exception, a watchdog) is a failure too, unless steps, a good end or a
    start of NCCL that came through follow it, or the line itself says that it was dealt with. The words of a
    known fault of a GPU, a card or a disk are told where nothing shows that the job went on after them.

    ## Fix
    - **you** read the line that is named, and those right before it from the same rank; the causes that are
      known stand above it.
    - **you** where no cause is named, run again with `NCCL_DEBUG=INFO` and `TORCH_DISTRIBUTED_DEBUG=DETAIL`,
      give the logs of all ranks, and `TORCH_FR_BUFFER_SIZE=2000` (older: `TORCH_NCCL_TRACE_BUFFER_SIZE`) for a
      hang.
    - **admin** where a rank ended without a word, look at `dmesg` of its host.

    ## Source
    NVIDIA NCCL documentation, Troubleshooting; PyTorch documentation, torch.distributed.elastic Error
    Propagation; NVIDIA/nccl#1235 and NVIDIA/nccl#795 (consequences taken for causes).
    """
    events = errors(logs)
    if events:
        yield _first(logs, events)
    elif events_of(logs, "ended-by-order", "time-limit", "preempted") or hung_up(logs) or terminated(logs):
        yield fine(Where(), "no line reports a failure but that the job was ended from outside (LOG006)")
    elif follow := consequences(logs):
        passed_on = {(event.file, event.line) for event in follow}
        warned = in_order(
            event
            for event in logs.events
            if event.level == "WARN"
            and not _means_nothing(event)
            and event.sign not in ENDS_NO_JOB
            and (event.file, event.line) not in passed_on
        )
        yield _first(logs, warned) if warned else _only_consequences(logs, follow)
    elif rest := unexplained(logs):
        yield _unknown(logs, rest)
    elif faults := last_words(logs):
        yield _of_a_fault(faults)
    else:
        yield fine(Where(), f"no line of {sum(file.lines for file in logs.files)} tells of a failure")


def _of_a_fault(faults: list[LogEvent]) -> Finding:
    """Nobody says that anything ended by it: it is told as a fault, and not as the job's end."""
    most = tells_most(faults)
    known = understood(most.text)
    return cause(
        [most, *(event for event in faults if event is not most)],
        f"{FAULT_TOLD}: {quoted(most)}",
        why=known.why if known else "",
        owner="job",
        fix=[*advice(most.text), *(known.fix if known else ())],
    )


def _unknown(logs: Logs, rest: list[LogEvent]) -> Finding:
    """A job that failed, by the line that says most of why."""
    ends = [event for event in rest if event.sign == "ended-badly"]
    events = in_order([event for event in rest if event.sign not in ("traceback", "root-cause-block")] or rest)
    sure = (
        event for event in events_of(logs, "complaint") if of_words(event.text)
    )  # though work is seen after it
    most = tells_most([*events, *in_order([*events_of(logs, "explains"), *sure])])
    usual = behind(" ".join(words(event.text) for event in [*ends, *events][:4]), nccl=of_nccl(logs))
    shows = you(f"What would show more: {usual.shows}.", *([usual.command] if usual.command else []))
    if not tells_why(most):
        faults = [event for event in in_order(logs.events) if of_a_fault(event.text)]
        most = faults[0] if faults else most
    if not tells_why(most) and not of_a_fault(most.text):
        return cause(
            events,
            f"this job failed, and this line does not say why: {quoted(events[0])}",
            why=f"Usually {usual.usually}.",
            owner="job",
            fix=[shows],
        )
    known = understood(most.text)
    return cause(
        [most, *(event for event in events if event is not most)],
        f"this job failed, and {SAY_OF_WHY}: {_dialled(logs, most)}{quoted(most)}",
        why=known.why if known else f"Usually {usual.usually}.",
        owner="job",
        fix=[
            *next(filter(None, (advice(event.text) for event in (most, *events[:4]))), []),
            *(known.fix if known else ()),
            shows,
        ],
    )


def _dialled(logs: Logs, answer: LogEvent) -> str:
    """The line right above an answer of the system that has no address in itself, if that line has one."""
    if not _ANSWER.search(answer.text) or _ADDRESS.search(answer.text):
        return ""
    above = (
        event
        for event in in_order(logs.events)
        if event.file == answer.file and 0 < answer.line - event.line <= _BETWEEN and _ADDRESS.search(event.text)
    )
    return next((f"{quoted(event, BESIDE)}; " for event in above), "")


def _means_nothing(event: LogEvent) -> bool:
    return event.sign in meanings.CONSEQUENCES or event.sign in meanings.HARMLESS


def _first(logs: Logs, events: list[LogEvent]) -> Finding:
    first = events[0]
    later = [
        event for event in events if (event.host, event.pid, event.rank) != (first.host, first.pid, first.rank)
    ]
    lines = "1 more line of another process reports a failure"
    if len(later) > 1:
        lines = f"{len(later)} more lines of other processes report failures"
    more = [seen("later", lines)] if later else []
    reason = before(logs, first, *(_CAUGHT if first.sign in _ONLY_ENDED else ()))
    above = f"; before it: {quoted(reason)}" if reason else ""
    known = understood(first.text) or (understood(reason.text) if reason else None)
    at = f" (NCCL's {first.fields['place']})" if "place" in first.fields else ""
    return cause(
        [first, *([reason] if reason else [])],
        f"the first failure in these lines: {first.text[:200]}{at}{above}",
        why=known.why if known else "What other ranks say after it follows from it, as a rule.",
        owner="job",
        more=more,
        fix=[
            *(known.fix if known else ()),
            you("Read this line and those before it of the same process; where no cause is named above, run "
                "again with more said.", *_more_said(logs)),
        ],
    )  # fmt: skip


@derived
def consequences(logs: Logs) -> list[LogEvent]:
    """Those that tell of a failure: at the end of a healthy job some ranks leave before others."""
    aside = {
        (event.file, event.line) for event in logs.events if event.sign == "python-error" and _is_aside(event)
    }
    events = (
        event
        for event in logs.events
        if event.sign in meanings.CONSEQUENCES and (event.file, event.line) not in aside
    )
    follow = in_order(event for event in events if not _hands_on_what_is_harmless(logs, event))
    if all(meanings.of_one_try(event) for event in follow) or only_services(logs):
        return []  # torch dials again
    if {event.sign for event in follow} == {"propagated"} and _nothing_else(logs):
        return []  # a rank that aborts its communicator on its own account hands on as much
    if not {event.sign for event in follow} <= meanings.AT_THE_END:
        return follow
    work = {} if died(logs) else Ending(logs).work
    well = events_of(logs, "ended-well") or all(work.get(event.file, 0) > event.line for event in follow)
    return [] if well else follow


def _is_aside(event: LogEvent) -> bool:
    """Whether it ended nothing but a thread that draws curves or feeds a program."""
    fields = event.fields
    raised = (fields.get("raised_at", "").partition("/")[0], fields.get("raised_in", "").partition("/")[0])
    of = {fields.get("client", ""), *raised}
    return meanings.ends_nothing(event) or not of.isdisjoint(_DRAWS)


def _nothing_else(logs: Logs) -> bool:
    """Whether all ranks came through NCCL's start, and nobody warns."""
    warned = any(event.level == "WARN" and event.sign not in meanings.HARMLESS for event in logs.events)
    return not warned and all(process.completed >= process.began > 0 for process in logs.processes)


def _hands_on_what_is_harmless(logs: Logs, event: LogEvent) -> bool:
    """`init.cc:526 -> 3` before its process came through its start, or after a warning that says nothing bad."""
    if event.sign != "propagated":
        return False
    if came_through(logs, event):  # as without RAS, whose address is wrong
        return True
    if _stays_within(logs, event):
        return True
    warned = (event for event in logs.events if event.level == "WARN" and event.sign in meanings.HARMLESS)
    return any(
        (warning.file, warning.host, warning.pid) == (event.file, event.host, event.pid)
        and 0 < event.line - warning.line <= _LINES
        for warning in warned
    )


def _stays_within(logs: Logs, event: LogEvent) -> bool:
    """Whether what asked first went on: no caller of its process hands the error on, and NCCL says more below.

    So does the search for a virtual interface's place on the PCI bus: `include/net.h:19 -> 2`.
    """
    of_process = [
        entry
        for entry in logs.events
        if (entry.file, entry.host, entry.pid) == (event.file, event.host, event.pid)
    ]
    if any(entry.sign == event.sign and UPMOST.search(entry.text) for entry in of_process):
        return False
    if any(
        entry.level == "WARN" and entry.line < event.line and entry.sign not in _NO_CAUSE for entry in of_process
    ):
        return False
    last = max(event.line for event in of_process)
    return any(file.name == event.file and (file.last_record or 0) > last for file in logs.files)


def _only_consequences(logs: Logs, follow: list[LogEvent]) -> Finding:
    peer = next((event.fields["peer"] for event in follow if event.fields.get("peer")), "")
    named = f" {peer} is the first that is named as gone." if peer else ""
    gone = peer if peer in {process.host for process in logs.processes} else ""
    what = (
        "these lines only tell that another process went away; where no other check says why, it is in a log that "
        f"was not given.{named}"
    )
    signs = {event.sign for event in follow}
    if signs == {"propagated"}:
        what = (
            "these lines only show the result that NCCL's functions handed up (FILE:LINE -> N); the warning that "
            "says why stands above them or in another rank's log"
        )
    elif signs <= {"flushed", "propagated"}:
        what = (
            "these lines only show that RDMA requests were flushed (status 5): their connection had broken; what "
            "broke it is in the log of another rank, or in the kernel's of either host"
        )
    root = root_cause(logs)
    at = Where(node=root.host or None, rank=root.rank) if root else Where(node=gone) if gone else None
    events = [event for event in logs.events if event.sign in _TELLS and tells_why(event) and event not in follow]
    shown = [*follow, *([root.exitcode] if root and root.exitcode else [])]
    if root and root.rank is not None:  # as torchrun's block says
        code = f" with exit code {root.exitcode.fields['exitcode']}" if root.exitcode else ""
        what = f"rank {root.rank} was the first to end{code}; what it raised or printed is not in these lines"
    elif left := first_to_leave(logs, follow):
        went = left.process
        at = Where(node=went.host, rank=went.rank)
        shown = [left.by, *(event for event in follow if event is not left.by)]
        what = f"rank {went.rank} (pid {went.pid} of {went.host}) was the first to go; why is not in these lines"
    most = tells_most(in_order(events)) if events else None
    return cause(
        [*([most] if most else []), *shown],
        f"these lines tell that another process went away; {SAY_OF_WHY}: {quoted(most)}" if most else what,
        why="These lines follow from the end of another process, and never say why it ended.",
        owner="job",
        at=at,
        fix=[
            *(advice(most.text) if most else []),
            *(known.fix if most and (known := understood(most.text)) else ()),
            you("Give the logs of all ranks, and find what the process wrote that went first.",
                *_more_said(logs)),
            admin("Where it wrote nothing, its host may have killed it.", "dmesg -T | grep -iE 'oom|xid|killed'"),
        ],
    )  # fmt: skip


def _more_said(logs: Logs) -> list[str]:
    """What would tell more the next time; what is on already is not asked for."""
    if not of_nccl(logs):
        return []
    level = {process.settings.get("NCCL_DEBUG") for process in logs.processes}
    exports = [] if any(file.records for file in logs.files) and level != {"WARN"} else ["export NCCL_DEBUG=INFO"]
    return [*exports, "export TORCH_DISTRIBUTED_DEBUG=DETAIL", "export TORCH_FR_BUFFER_SIZE=2000"]


@log_rule("LOG005", "NCCL printed no warning", worst=State.WARN, symptom=True)
def no_warning(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Warnings of NCCL that no other check knows.

    ## Why it matters
    NCCL warns rarely, and nearly always about what ends the job.

    ## Seen as
    dies

    ## How we know
    Lines of level WARN that none of the known signs is in, by their first words; consequences are not among
    them, nor is what NCCL gave up after (LOG189).

    ## Fix
    - **you** search for the words of the line in NVIDIA/nccl's issues, and tell us of the line.

    ## Source
    NVIDIA/nccl src/debug.cc; NVIDIA NCCL documentation, NCCL_DEBUG.
    """
    unknown = (
        event
        for event in events_of(logs, "nccl-warning")
        if meaning(event, (*SYSTEM, *WARNINGS)) is None and not gave_up(logs, event)
    )
    events = sorted(in_order(unknown), key=meanings.tells_of_a_risk)
    if events:
        yield warn(
            Where(node=events[0].host or None, rank=events[0].rank),
            f"NCCL warns of what is not known here: {events[0].text[:200]}",
            why="NCCL warns rarely, and nearly always about what ends the job.",
            owner="job",
            evidence=lines(events),
            fix=[you("Search for these words in the issues of NVIDIA/nccl.")],
        )
    elif events_of(logs, *meanings.CONSEQUENCES):
        yield fine(Where(), "NCCL's warnings only report what happened elsewhere")
