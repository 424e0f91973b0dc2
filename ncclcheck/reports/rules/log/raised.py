"""LOG004: exceptions of Python and exit codes, by their own words where no check knows them better."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import (
    Finding,
    Where,
    seen,
    you,
)
from ncclcheck.reports.rules.log.first import errors
from ncclcheck.reports.subjects.logs.logged import cause, events_of, in_order, log_rule, root_cause
from ncclcheck.reports.subjects.logs.reported import several_hosts
from ncclcheck.reports.subjects.logs.words.exceptions import family, own_service
from ncclcheck.reports.subjects.logs.words.unexplained import unexplained
from ncclcheck.reports.subjects.logs.words.wording import (
    BESIDE,
    advice,
    of_a_sum,
    of_class,
    quoted,
    tells_most,
    tells_why,
    understood,
)
from ncclcheck.reports.text.words.fold import fold_ranks

_MOST_OF_TEXT = 400  # of the exception; a terminal shows the first three lines of it
_SHORT = 120  # the same: where it was raised stands beside it
_MOST_OF_CODE = 100  # characters of a line of code beside a short exception
_SAYS_NOTHING = re.compile(
    r"raise\b|(?:return |await |\w{1,40} = )?[\w.]{0,60}\b(?:exit|main|run|fit|train|launch|start|__init__|call)"
    r"\w{0,20}\(|.*[(,\[{]$|.{0,12}$"
)
_TWICE = re.compile(r"^(.{6,}?)\1+$")  # what two processes say into one line
_MOST_KINDS = 4  # of exceptions that are told: chosen, the first is the cause in most logs
_SEVERE = re.compile(r"(?:\S{1,40} ){0,3}\[?(?:E\d{4} |ERROR\b|CRITICAL\b|FATAL\b)")
_ABOVE = 400  # lines: what a library says before the program around it gives up; tracebacks of 8 ranks between
# A program's own: Python ends with 1 after an exception, shells with 126 and more of what they could not run.
_CODES = range(2, 126)


@log_rule("LOG004", "no rank raised an exception or exited with an error", told_by="RUN003")
def no_exception(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    An exception of the user's program that is not a consequence of another process's end; or an exit code of its
    own, without one.

    ## Why it matters
    The most frequent cause of all: one rank meets a bad sample, a missing file or a mistake in the code and
    ends; the others wait for it in the next collective until the watchdog or torchrun ends them.

    ## How we know
    The last line of a Python traceback (`ValueError: ...`), and its last frame that is not of a library's. What
    stands behind the words of an exception is known for some families: files, hubs of models, libraries that do
    not fit, settings, engines' memory. Exceptions that only pass on what happened
    elsewhere are left out (DistBackendError with a remote error, ChildFailedError, SignalException, "Connection
    closed by peer"). The same exception on all ranks is a mistake in the program or its arguments; on one rank
    look at its data.

    Where torchrun's first failure is an exit code from 2 to 125 and no line shows another failure, the program
    or a library called `exit`: the rank is the one of torchrun's Root Cause block.

    ## Fix
    - **you** read the traceback above the named line; run the step on one process.
    - **you** an exit code: look for what leaves with it (`sys.exit`, `os._exit`), and what that rank printed last.

    ## Source
    Python documentation, Errors and Exceptions, and os._exit; PyTorch documentation, torchrun (Error Propagation).
    """
    failed = errors(logs)
    events = [event for event in failed if event.sign == "python-error"]
    if failed and {event.sign for event in failed} == {"worker-failed"}:
        yield from _left(logs, failed)
    if not failed:
        yield from _left_mpirun(logs)
    for same in _kinds(events)[:_MOST_KINDS]:
        yield _raised(logs, same)


def _kinds(events: list[LogEvent]) -> list[list[LogEvent]]:
    """Exceptions of one type; what the same process raised while it dealt with another one goes with that."""
    kinds: dict[str, list[LogEvent]] = {}
    last: dict[tuple[str, str, int | None, int | None], str] = {}
    for event in events:
        writer, kind = (event.file, event.host, event.pid, event.rank), event.fields.get("type", "")
        if "chained" in event.fields:
            kind = last.get(writer, kind)
        last[writer] = kind
        kinds.setdefault(kind, []).append(event)
    return [*kinds.values()]


def _raised(logs: Logs, same: list[LogEvent]) -> Finding:
    """Who raised it, in its own words, where, what stands behind such words, and what fixes that."""
    first = same[0]
    known = own_service(same) or next(filter(None, map(family, same)), None)
    known = known or of_a_sum(first)
    general = None if known else of_class(_in_its_words(first))
    earlier = _before(logs, same)
    places = [event.fields.get("unreadable") or event.fields.get("raised_at", "") for event in same]
    at = next(filter(None, places), "")
    ranks = sorted({event.rank for event in same if event.rank is not None})
    spawned = next((event.fields["spawned"] for event in same if "spawned" in event.fields), "")
    lone = (
        f"process {spawned} of torch's spawn" if spawned else f"process {first.pid}" if first.pid else "a process"
    )
    at_rank = Where(rank=int(spawned)) if spawned and not ranks and not several_hosts(logs) else None
    who = fold_ranks(ranks) if len(ranks) > 1 else f"rank {ranks[0]}" if ranks else lone
    if known and known.of_all:
        who, at_rank = "the ranks", Where()
    text = _in_its_words(next((event for event in same if not _is_garbled(event)), first))
    short = at and len(text) <= _SHORT
    hollow = None if known else earlier
    meaning = known or general or (understood(hollow.text) if hollow else None)
    after = f"; before it: {quoted(hollow, BESIDE)}" if hollow else ""
    if after and len(text) > BESIDE:
        text, short = f"{text[:BESIDE].rpartition(' ')[0]} ...", False
    place = (
        f"Look at {at}" if at else "Read the traceback above this line: the last frame of your own is the place"
    )
    look = you(f"{place}. Where one rank alone raised it, look at what is different there: data, files, host.")
    return cause(
        same,
        at=at_rank,
        what=f"{who} raised {text}{f' at {at}{_code(first)}' if short else ''}{after}",
        why=meaning.why if meaning else "Its process ends, and all others wait for it in their next collective.",
        owner="job",
        more=[
            *([seen("raised at", at)] if at and not short else []),
            *([seen("before it", f"line {earlier.line}: {quoted(earlier)}")] if earlier and not after else []),
        ],
        fix=[*advice(first.text), *(meaning.fix if meaning else ()), *(() if known else (look,))],
    )


def _code(event: LogEvent) -> str:
    """The line of code that raised it, where it says more than that something is raised or called."""
    code = event.fields.get("code_line", "")
    return f": {code[:_MOST_OF_CODE]}" if code and not _SAYS_NOTHING.match(code) else ""


def _before(logs: Logs, same: list[LogEvent]) -> LogEvent | None:
    """What the same file complained of before an exception, and says more than that something failed."""
    first = same[0]
    open_ = {id(event) for event in unexplained(logs)}
    above = [
        event
        for event in events_of(logs, "complaint")
        if event.file == first.file
        and 0 < first.line - event.line <= _ABOVE
        and (id(event) in open_ or _SEVERE.match(event.text))
    ]
    most = tells_most(above) if above else None
    return most if most and tells_why(most) else None


def _is_garbled(event: LogEvent) -> bool:
    """Whether two processes wrote into this line, or its words went to another one."""
    text = event.fields.get("text", "")
    return not text or text.startswith(":")


def _in_its_words(event: LogEvent) -> str:
    """The exception; of an assertion without a message, or with a dump for one, what did not hold."""
    text = event.text[:_MOST_OF_TEXT].rstrip()
    if _is_garbled(event) and (words := event.fields.get("text", "").lstrip(": ")):
        once = _TWICE.match(words)
        text = f"{event.fields['type']}: {once[1] if once else words}"
    condition = event.fields.get("condition", "")
    bare = condition and "text" not in event.fields and event.fields.get("type", "").endswith("AssertionError")
    if condition and event.fields.get("text", "").startswith(("{", "[", "(")):
        return f"{event.fields.get('type', '')}: assert {condition}: {event.fields['text']}"[:_MOST_OF_TEXT]
    return f"{text.rstrip(':')}: assert {condition}" if bare else text


def _left_mpirun(logs: Logs) -> Iterator[Finding]:
    """The first that mpirun saw end with an exit code, or that called MPI_Abort; why is not in the log."""
    first, code = (
        next(iter(events_of(logs, "mpirun-first")), None),
        next(iter(events_of(logs, "mpirun-exit")), None),
    )
    if aborted := in_order(events_of(logs, "mpi-abort")):
        yield cause(
            aborted,
            "the program of a rank ended the job by MPI_Abort; why is not in the log",
            why="MPI_Abort ends all ranks; what that rank printed before it says why.",
            owner="job",
            fix=[you("Confirm: read what that rank printed, each rank into a file of its own.",
                     "mpirun --output-filename logs ...", "export NCCL_DEBUG=INFO")],
        )  # fmt: skip
    elif first is not None and not events_of(logs, "mpirun-signalled"):
        ending = f" with exit code {code.fields['exitcode']}" if code else ""
        yield cause(
            [first, *([code] if code else [])],
            f"rank {first.rank} was the first to end{ending}; why is not in the log",
            why="mpirun ends all others as soon as one process ends with an exit code other than 0.",
            owner="job",
            fix=[you("Confirm: read what that rank printed, each rank into a file of its own.",
                     "mpirun --output-filename logs ...", "export NCCL_DEBUG=INFO")],
        )  # fmt: skip


def _left(logs: Logs, failed: list[LogEvent]) -> Iterator[Finding]:
    """Where the first process that failed called exit itself."""
    fields = failed[0].fields
    if int(fields["exitcode"]) not in _CODES:
        return
    root = root_cause(logs)
    same = root and root.exitcode and root.exitcode.fields["pid"] == fields["pid"]
    at = Where(node=root.host or None, rank=root.rank) if root and same else Where()
    who = f"local rank {fields['local_rank']}" if at.rank is None else f"rank {at.rank}"
    yield cause(
        failed,
        f"{who} left with exit code {fields['exitcode']} and raised nothing that is in the log",
        why="Its program, or a library in it, called exit; torchrun then ends all others.",
        owner="job",
        at=at,
        fix=[
            you("Confirm: see what leaves with this code.",
                f"grep -rnE 'exit[( ]+{fields['exitcode']}' --include=*.py --include=*.sh ."),
            you(f"Read what {who} printed last; let it raise an exception instead, which names its line."),
        ],
    )  # fmt: skip
