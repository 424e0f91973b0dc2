"""LOG: logs that could not be read to their end, that just stop, or that hold several attempts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from ncclcheck.probes.facts import Cluster, LogEvent, LogFile, LogProcess, Logs
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, fine, note, seen, unknown, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.rules.log.first import errors
from ncclcheck.reports.rules.log.killed import stood_in
from ncclcheck.reports.subjects.logs.attempts import earlier, latest
from ncclcheck.reports.subjects.logs.dialled_addresses import is_virtual
from ncclcheck.reports.subjects.logs.ending import LEVELS, died, goes_on_after
from ncclcheck.reports.subjects.logs.logged import (
    events_of,
    in_order,
    lines,
    log_rule,
)
from ncclcheck.reports.subjects.logs.words.meanings import ends_nothing
from ncclcheck.reports.subjects.logs.words.unexplained import is_foreign, last_words, unexplained
from ncclcheck.reports.subjects.logs.words.wording import MILD, SAID, advice, of_a_fault, quoted, tells_most
from ncclcheck.reports.subjects.logs.words.wording import understood as understood_words
from ncclcheck.reports.text.words.fold import fold_numbers, many

# What shows that a job ended, or went on once NCCL had started.
_ENDED = ("ended-well", "nccl-tests-ended", "ended-by-order", "time-limit", "preempted", "shell-time")
GONE_ON = ("training-goes-on", "work-goes-on", "profiled-goes-on", "nccl-tests-row")
ENDED = "the log shows that the job ended"
_GOES_ON = 10  # lines of the program after NCCL's last one: fewer are warnings that torch prints at the start
ASK_RAS = you(
    "If the job hangs, ask NCCL's RAS on one of its hosts while it does (NCCL 2.24 and later).",
    "echo 'verbose status' | nc localhost 28028",
)
_OTHER_INTERFACE = you(
    "Give NCCL only interfaces by which the hosts reach each other.", "export NCCL_SOCKET_IFNAME=^lo,docker,veth"
)
ASK_STACKS = you("If the job hangs, see where each process stands while it does.", "py-spy dump --pid PID")
_RELEASE, _RAS_SINCE = re.compile(r"\d{1,3}\.\d{1,3}"), (2, 24)
# Any word of complaint, also in lines that mean nothing as a rule: then it is not said that nobody complains.
_BAD_WORD = re.compile(
    r"(?i)\berr(?:or|no)?\b|error|fail|timed? ?out|refused|denied|unable|cannot|can't|could ?n[o']t|abort|killed"
    r"|exception|invalid|not (?:found|known|available|supported)|no such|unreachable|no route|mismatch|lost\b|warn"
)
# Harmless in a start that goes on; where nothing is told after them they are all that the log says.
_TELL_AT_THE_END = ("connect-retried", "name-unresolved", "store-refused")
_AT_THE_END = "the log ends with"
_NEAR_THE_END = 5  # lines: chosen, what is printed below a last error
_RAISED = ("python-error", "nccl-warning", "complaint")


@rule("LOG003", "the logs were read completely", worst=State.UNKNOWN, over="", commands=("logs",), unfinished=True)
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


@log_rule(
    "LOG007",
    "the log shows that the job ended or made progress",
    worst=State.UNKNOWN,
    symptom=True,
    unfinished=True,
    whole=True,
)
def log_shows_the_end(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A log that just stops: no communicator is destroyed, or not by all ranks, no step is printed, nobody exits.

    ## Why it matters
    NCCL is silent where a job hangs. A rank that skips a collective or is stopped, a network that drops
    packets: none of them leaves a line in NCCL's log. Such a log holds no failure, and is no proof that all is
    well. A job that still runs, a file that was cut and a program that ends without destroying its communicators
    look the same: so it is not known, and the exit code is 3.

    ## Seen as
    hangs

    ## How we know
    NCCL 2.23 to 2.27, run with a collective that one rank skips, with a stopped rank and with kernels that never
    end: after "Init COMPLETE" and "Connected all rings" came nothing, in the log of no rank. What counts as an end
    or as going on: "Destroy COMPLETE", training steps, requests that are served, what torchrun and Slurm say of
    an end, results and the last line of nccl-tests, and ten lines of the program after NCCL's last one.

    ## Fix
    - **you** ask RAS while the job hangs (NCCL 2.24 and later): it names the ranks that are behind or gone. Then
      py-spy on the named rank.
    - **you** give the logs of all ranks, to their end; where there is more to read than NCCL's lines, that too.

    ## Source
    NVIDIA NCCL documentation, RAS and Troubleshooting; NVIDIA/nccl src/init.cc.
    """
    before, logs = earlier(logs), latest(logs)
    if is_foreign(logs) or not any(file.lines for file in logs.files):
        raise NothingToJudge("no line is NCCL's, torch's or a launcher's (LOG008)")
    if errors(logs) or died(logs) or unexplained(logs) or last_words(logs):
        raise NothingToJudge("the log shows a failure")
    began = [process for process in logs.processes if process.completed]
    ended = [*_ENDED, *(["not-destroyed"] if _is_more(logs, began) else [])]
    apart = any(process.ended for process in began) and not all(process.ended for process in began)
    if events_of(logs, *ended) or (any(process.ended >= process.completed for process in began) and not apart):
        yield fine(Where(), ENDED)
    elif not _left(logs) and (events_of(logs, *GONE_ON) or any(_goes_on(file) for file in logs.files)):
        yield fine(Where(), "the log shows that the job went on; its end is not in it")
    else:
        words = [event for event in events_of(logs, *SAID) if not MILD.match(event.text) or of_a_fault(event.text)]
        tries = events_of(logs, *_TELL_AT_THE_END)
        last_tried = [event for event in tries if _stands(logs, event) == _AT_THE_END]
        events = [event for event in before if event.sign in _RAISED] or words
        reason = tells_most(events) if events else next(reversed(last_tried), None)
        yield (None if began else _members_missing(logs)) or _stops(logs, began, reason, again=bool(before))


def _members_missing(logs: Logs) -> Finding | None:
    """Ranks of Lightning's that these lines do not name, where they stop before all had joined."""
    events = events_of(logs, "lightning-member")
    world = max((int(event.fields["of"]) for event in events), default=0)
    missing = sorted({*range(min(world, 65536))} - {event.rank for event in events})
    if not missing or events_of(logs, "lightning-registered"):
        return None
    came = sorted({event.rank for event in events if event.rank is not None})
    twice = len(events) == world == 2 * len(came)
    doubled = f": ranks {fold_numbers(came)} are announced twice (two nodes with one number, or a doubled logger)"
    return unknown(
        Where(),
        f"the start stops at {world - len(missing)} of {many(world, 'rank')}{doubled if twice else ''}; not in "
        f"these files: ranks {fold_numbers(missing)}",
        why="Lightning's start waits for all ranks: those that were not started on another node, or cannot reach "
        "the master, leave no line here.",
        owner="job",
        evidence=lines(events),
        fix=[
            you(
                "Confirm that every node started its ranks, as many as the Trainer's devices.",
                "srun --ntasks-per-node=GPUS_PER_NODE python train.py",
            )
        ],
    )


def _left(logs: Logs) -> bool:
    """Whether a loader's worker ended as its loader was taken down, and no more than buffered lines follow."""
    down = (event for event in events_of(logs, "worker-killed") if ends_nothing(event))
    return any(not goes_on_after(logs, event.file, event.line) for event in down)


def _is_more(logs: Logs, began: list[LogProcess]) -> bool:
    """Whether there is more than the last words of a program, which one that raised an exception says as well."""
    return bool(began) or sum(file.lines for file in logs.files) >= _GOES_ON


def _nowhere(logs: Logs) -> str:
    """An interface that NCCL sends data over, and by which no other host is reached."""
    used = (
        end.interface
        for process in logs.processes
        if process.network == "Socket"
        for end in process.interfaces
        if is_virtual(end.interface) and end.address.startswith("fe80:")
    )
    name = next(used, "")
    return f"NCCL also sends over {name}, link-local: another host is not reached by it" if name else ""


def _stops(logs: Logs, began: list[LogProcess], reason: LogEvent | None, *, again: bool) -> Finding:
    """reason: what may say why, of an earlier attempt where there was one (again)."""
    ranks = sorted({process.rank for process in began if process.rank is not None})
    who = f" (rank{'s' if len(ranks) > 1 else ''} {fold_numbers(ranks)})" if ranks else ""
    world = f" of a job of {many(logs.world, 'rank')}" if logs.world else ""
    last = [seen(f"{file.name}:{file.last_record}", "NCCL's last line") for file in logs.files if file.records]
    where_ = f"stop after NCCL's start in {len(began)} process{'es' * (len(began) != 1)}{who}{world}"
    if any(process.ended for process in began):
        left = sorted({process.rank for process in began if process.rank is not None and not process.ended})
        named = f"rank{'s' if len(left) > 1 else ''} {fold_numbers(left)}" if left else "a process"
        where_ = f"do not show that {named} destroyed its communicators, as others did"
    stack = [stood_in(event.fields) for event in events_of(logs, "native-frame") if "stacked" in event.fields]
    stands = f"a debugger's stack: the process stood in {', called by '.join(stack[:3])}; " if stack else ""
    first = f"{_stands(logs, reason)}: {quoted(reason)}; " if reason and not again else ""
    nowhere = _nowhere(logs)
    if nowhere and first:  # it explains what was tried in vain
        first, nowhere = f"{nowhere}; {first}", ""
    silent = "" if reason or _frightens(logs) else "nobody complains, and "
    return unknown(
        Where(),
        f"{stands}{first}{silent}these lines do not show that the job ended or went on"
        + (f": they {where_}" if began else "")
        + (f"; {nowhere}" if nowhere else "")
        + (f"; an earlier attempt failed by: {quoted(reason)}" if reason and again else ""),
        why="A rank that never arrived at a collective or was stopped, or a network that drops packets, leaves no "
        "line in NCCL's log. A job that still runs or a file that was cut looks the same."
        if _speaks_of_nccl(logs) else "A process that waits or was stopped prints nothing. A job that still runs "
        "or a file that was cut looks the same.",
        owner="job",
        evidence=[*(lines([reason]) if reason else []), *last[:3]],
        fix=[
            *([_OTHER_INTERFACE] if _nowhere(logs) else []),
            *(advice(reason.text) if reason else []),
            *(known.fix if reason and (known := understood_words(reason.text)) else []),
            ask_where_it_stands(logs),
        ],
    )  # fmt: skip


def _frightens(logs: Logs) -> bool:
    """Whether any line has a word of complaint, also one that means nothing as a rule."""
    return any(event.level in LEVELS or _BAD_WORD.search(event.text) for event in logs.events)


def _speaks_of_nccl(logs: Logs) -> bool:
    """Whether NCCL wrote any of it."""
    return bool(logs.processes or logs.version or any(file.records for file in logs.files))


def ask_where_it_stands(logs: Logs) -> Remedy:
    """Of a job that may hang: NCCL's RAS where NCCL is seen and may have it, else Python's stack."""
    versions = {process.version for process in logs.processes} | {logs.version}
    numbers = [tuple(map(int, match[0].split("."))) for name in versions if (match := _RELEASE.match(name or ""))]
    old = bool(numbers) and max(numbers) < _RAS_SINCE
    return ASK_RAS if _speaks_of_nccl(logs) and not old else ASK_STACKS


@log_rule(
    "LOG008",
    "the logs contain lines of NCCL, torch or a launcher",
    worst=State.UNKNOWN,
    symptom=True,
    unfinished=True,
)
def understood(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Logs of something else: no line is NCCL's, torch's, a launcher's, or of a kind that is known here.

    ## Why it matters
    Neither healthy nor faulty: the log of the job may be another file. What stands out in these lines is quoted.

    ## How we know
    Neither the names of NCCL, torch, gloo, Slurm, mpirun, DeepSpeed, Megatron, Lightning, vLLM, SGLang, Ray and
    Neuron nor a rank stand in any line, whatever stands before it, and no line is one that a rule knows.

    ## Fix
    - **you** give the log that the ranks write: torchrun's output, Slurm's `slurm-JOB.out`, the file of
      NCCL_DEBUG_FILE.

    ## Source
    NVIDIA NCCL documentation, NCCL_DEBUG_FILE; PyTorch documentation, torchrun; sbatch(1).
    """
    if not is_foreign(logs):
        yield fine(Where(), "lines of NCCL, torch or a launcher are there")
        return
    bad = in_order(logs.events)
    most = tells_most(bad) if bad else None
    known = understood_words(most.text) if most else None
    count = many(sum(file.lines for file in logs.files), "line")
    strange = f"no line of these {count} is NCCL's, torch's or a launcher's"
    neither = "Not understood, so neither healthy nor faulty."
    yield unknown(
        Where(),
        f"{_stands(logs, most)}: {quoted(most)}" if most else strange,
        why=f"{known.why if known else neither} Whether a job failed by it is not known: {strange}."
        if most
        else neither,
        owner="job",
        evidence=lines([most, *(event for event in bad if event is not most)]) if most else [],
        fix=[
            *(known.fix if known else ()),
            you("Give the log that the ranks write: torchrun's output, Slurm's slurm-JOB.out, NCCL_DEBUG_FILE."),
        ],
    )


def _stands(logs: Logs, event: LogEvent) -> str:
    """Where the line stands that says most."""
    below = next((file.lines - event.line for file in logs.files if file.name == event.file), 0)
    return _AT_THE_END if below < _NEAR_THE_END else "the log says"


@log_rule("LOG009", "the log covers a single attempt", worst=State.NOTE, symptom=True, whole=True)
def one_attempt(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Several attempts in one log: torchrun started its workers anew, or a script or Slurm the whole job.

    ## Why it matters
    What ended an earlier attempt may have nothing to do with how the last one ended. The last one is judged.

    ## How we know
    torchrun's "will restart worker group" and "restart_count"; NCCL that begins once more for a rank, in another
    process, after a failure; a rank whose main script raises once more; a program that could not be read, or whose
    arguments were refused, before it.

    ## Fix
    - **you** where the first failure is looked for, give the log up to the line that is named.

    ## Source
    PyTorch documentation, torchrun (--max-restarts); sbatch(1), --requeue.
    """
    before = in_order(errors(replace(logs, events=earlier(logs)))) or earlier(logs)
    if not before:
        raise NothingToJudge("the log holds one attempt")
    yield note(
        Where(),
        f"an earlier attempt in this log failed: {before[0].text.strip()[:160]}",
        why="The last attempt is the one that is judged.",
        evidence=lines(before[:1]),
    )


def _goes_on(file: LogFile) -> bool:
    """Whether the program printed more than a few lines after NCCL's last one."""
    return bool(file.last_record) and file.lines - file.last_record >= _GOES_ON
