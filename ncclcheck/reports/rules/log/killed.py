"""LOG093: processes that a signal ended: killed, crashed or aborted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.probes.facts.log.fields import LogFields, first_named
from ncclcheck.reports.judgement.findings import Finding, Owner, Remedy, Where, admin, you
from ncclcheck.reports.rules.log.process import crashed_in_start
from ncclcheck.reports.subjects.logs.logged import (
    cause,
    events_of,
    in_order,
    log_rule,
    own_exceptions,
    root_cause,
    where,
)
from ncclcheck.reports.subjects.logs.start.left import where_it_went
from ncclcheck.reports.subjects.logs.words import meanings
from ncclcheck.reports.subjects.logs.words.exceptions import of_words


class _SignalKind(NamedTuple):
    """names: what shells, Slurm and torch call the signal."""

    number: int
    names: tuple[str, ...]
    what: str
    owner: Owner
    confirm: str


_FRAME = re.compile(
    r'File "(?P<package>[^"]{0,300}/(?:site-packages|dist-packages|python\d[\d.]{0,5})/)?(?P<path>[^"]{1,400})",'
    r" line (?P<line>\d{1,7}) in (?P<function>[\w<>.]{1,100})"
)
_STACK = "PYTHONFAULTHANDLER=1 torchrun --nproc-per-node=8 train.py"
_KINDS = (
    _SignalKind(9, ("Killed", "SIGKILL"),
        "was killed by SIGKILL: most often by the kernel, when host memory runs out",
          "node", "dmesg -T | grep -iE 'oom|killed process'; cat /sys/fs/cgroup/memory.events"),
    _SignalKind(7, ("Bus error", "SIGBUS"), "died of a bus error (SIGBUS); most often /dev/shm is full", "node",
          "df -h /dev/shm"),
    _SignalKind(11, ("Segmentation fault", "SIGSEGV"), "crashed (segmentation fault, SIGSEGV)", "job", _STACK),
    _SignalKind(6, ("Aborted", "abort", "SIGABRT"), "aborted (SIGABRT)", "job", _STACK),
    _SignalKind(4, ("Illegal instruction", "illegal hardware instruction", "SIGILL"),
          "died of an illegal instruction (SIGILL): a library was built for another CPU", "job", "lscpu"),
    _SignalKind(8, ("Floating point exception", "SIGFPE"), "died of an arithmetic error (SIGFPE)", "job", _STACK),
)  # fmt: skip
_OUT_OF_MEMORY = _KINDS[0]._replace(what="was killed: host memory was used up, its node's or its cgroup's")
_KILL, _CRASH, _ABORT, _BUS = 9, 11, 6, 7  # SIGKILL, SIGSEGV, SIGABRT, SIGBUS. Source: signal(7), on x86 and arm64
_NOT_OURS = "invalid permissions for mapped object"
_PASSED_ON = re.compile(
    r"(?i)\bunhandled (?:cuda|system) error|\bnccl ?(?:internal|unhandled\w{0,9}|system) ?error"
)
_NEAR = 4  # lines between what was thrown and what it says, where others print too
_STACK_LINES = 12  # of a stack, from the signal's line to its first function with a name
_MOST_OF_TEXT = 160  # characters
_OF_A_SHELL = 128  # POSIX sh: the exit code of what a signal ended is this and the signal's number
_BY_THE_KERNEL = ("Out Of Memory", "Killed")
_FAILURES = (
    "watchdog-timeout",
    "watchdog-cut",
    "watchdog-stuck",
    "time-limit",
    "preempted",
    "node-lost",
    "ended-by-order",
    "gpu-lost",
    "gpu-hang",
    "device-assert",
)
_NOT_ITSELF = ("aborted-by-watchdog", "message-truncated", "worker-killed", "worker-died")


@log_rule("LOG093", "no process died of a signal", told_by="RUN003")
def nobody_is_killed(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A process that a signal ended: killed for want of memory, a bus error, a crash, an abort.

    ## Why it matters
    It leaves no traceback of Python: in its own log there is nothing, and the others blame the network.

    ## How we know
    The exit code that torchrun reports (-9, -7, -11, -6), mpirun's "exited on signal 9", the words of a shell
    ("Killed", "Segmentation fault (core dumped)"), Slurm's "oom_kill" or "Out Of Memory", the kernel's "Out of
    memory: Killed process"; a shell's or a container's exit code is 128 more than the signal (137, 139).
    -15 is a consequence: torchrun and Slurm end the others that way; so is Slurm's or a shell's "Killed" once
    another failure is logged. -6 counts where no watchdog and no error of NCCL reports
    an end before it: `terminate called without an active exception` is a program that was left (`sys.exit`, an
    exception) while its threads ran. A crash in NCCL's start is LOG070.

    ## Fix
    - **you** killed: fewer loader workers, less prefetch, no dataset held in memory by each worker.
    - **you** crashed or aborted: `PYTHONFAULTHANDLER=1` prints the line of the program that it was in.
    - **admin** more memory for the job (cgroup), `dmesg` of that host.

    ## Source
    signal(7); Linux kernel documentation, cgroup v2 memory.events; slurm.conf(5); Python documentation,
    faulthandler.
    """
    tasks = _killed_tasks(logs)
    if killed := in_order(events_of(logs, "oom-killed")):
        yield _ended(logs, killed + tasks, _OUT_OF_MEMORY)
        return
    for kind in _KINDS:
        events = _exits(logs, kind) + _named(logs, kind) + (tasks if kind.number == _KILL else [])
        if kind.number in (_CRASH, _ABORT):
            events = [] if _has_another_reason(logs, kind, events) else events + _told_itself(logs, kind)
        events += events_of(logs, "bus-error") if kind.number == _BUS else []
        if events:
            yield _ended(logs, _by_line(events), kind)


def _exits(logs: Logs, kind: _SignalKind) -> list[LogEvent]:
    """The exit codes that launchers tell; of crashes and aborts, which may follow, the first one's only."""
    events = [
        event
        for event in events_of(
            logs, "worker-failed", "root-cause-exit", "launcher-return-code", "mpirun-signalled"
        )
        if _signal(event) == str(kind.number)
    ]
    if kind.number not in (_CRASH, _ABORT):
        return events
    root = root_cause(logs)
    return [event for event in events if event.sign != "root-cause-exit" or (root and event is root.exitcode)]


def _signal(event: LogEvent) -> str:
    """The number of the signal that a launcher tells; torchrun's exit codes are those below zero."""
    fields = event.fields
    code = fields.get("exitcode", "")
    if by_shell := fields.get("by_shell", ""):
        return str(int(by_shell) - _OF_A_SHELL)
    return code[1:] if code.startswith("-") else fields.get("signal") or fields.get("hydra", "")


def _named(logs: Logs, kind: _SignalKind) -> list[LogEvent]:
    """What shells and torch's spawn say, as far as nothing failed before it."""
    names = {name.lower() for name in kind.names}
    events = [
        event
        for event in events_of(logs, "shell-signalled", "spawned-signalled")
        if first_named(event.fields, "how", "zsh", "name", "python").lower() in names
    ]
    failed = _failures(logs)
    if kind.number == _KILL:  # what a shell says of the last of them: another had ended before
        failed += events_of(logs, "segfault", "aborted", "ray-worker-died", "engine-dead")
    return [event for event in events if not any(other.order < event.order for other in failed)]


def _told_itself(logs: Logs, kind: _SignalKind) -> list[LogEvent]:
    return events_of(logs, *(("segfault",) if kind.number == _CRASH else ("aborted", "heap-damaged")))


def _failures(logs: Logs) -> list[LogEvent]:
    """Lines that tell of an end for another reason."""
    return [*own_exceptions(logs), *events_of(logs, *_FAILURES), *_warnings(logs)]


def _warnings(logs: Logs) -> list[LogEvent]:
    """Of NCCL, all but those that tell of the end of another process."""
    return [
        event
        for event in logs.events
        if event.level == "WARN"
        and event.sign not in meanings.CONSEQUENCES
        and event.sign not in meanings.HARMLESS
    ]


def _has_another_reason(logs: Logs, kind: _SignalKind, exits: list[LogEvent]) -> bool:
    """Whether a crash or an abort follows from, or belongs to, what another check tells."""
    events = exits + _told_itself(logs, kind)
    if not events or events_of(logs, *_NOT_ITSELF) or (kind.number == _CRASH and crashed_in_start(logs)):
        return True
    first = min(event.order for event in events)
    return any(kind.number == _ABORT or failure.order < first for failure in _failures(logs))


def _killed_tasks(logs: Logs) -> list[LogEvent]:
    """By Slurm, which kills what is left itself, once a task has ended otherwise or srun was told to end."""
    ends = in_order(events_of(logs, "srun-task-exit", "step-cancelled", "ended-by-order"))
    others = next(
        (at for at, event in enumerate(ends) if event.fields.get("how") not in _BY_THE_KERNEL), len(ends)
    )
    return ends[:others] + [end for end in ends[others:] if end.fields.get("how") == _BY_THE_KERNEL[0]]


def _by_line(events: list[LogEvent]) -> list[LogEvent]:
    """Each line once, the first first."""
    return in_order({(event.file, event.line): event for event in reversed(events)}.values())


def _ended(logs: Logs, events: list[LogEvent], kind: _SignalKind) -> Finding:
    fields = next((event.fields for event in events if event.fields.get("local_rank")), LogFields())
    known = of_words(_thrown(logs, events)) if kind.number == _ABORT else None
    rank = events[0].rank if events[0].sign == "mpirun-signalled" else None
    who = f"local rank {fields['local_rank']}, process {fields['pid']}," if fields.get("pid") else "a process"
    who = who if rank is None else f"rank {rank}"
    return cause(
        events,
        f"{who} {kind.what}{_left(logs, events, kind)}",
        why=known.why
        if known
        else "A process that a signal ends leaves no traceback, and the others blame the network.",
        owner=kind.owner,
        at=_place(logs, events, kind),
        fix=[*known.fix] if known else [*_by_mpi(events), *_asked(logs, events, kind), *_remedies(kind)],
    )


def _left(logs: Logs, events: list[LogEvent], kind: _SignalKind) -> str:
    """What the library that gave up said of it, or where Python's own handler saw the process."""
    if kind.number == _CRASH and any(_NOT_OURS in event.text for event in events):
        return ": a library, most often MPI's, read memory of a GPU as if it were the host's"
    stood = _stood(events_of(logs, "crashed-thread")) if kind.number != _ABORT else ""
    stood = stood or (_native(logs, events) if kind.number == _CRASH else "")
    if stood:
        return f" in {stood}"
    damaged = next(iter(events_of(logs, "heap-damaged")), None)
    if damaged is not None and kind.number == _ABORT:
        return f": a library had damaged its memory ({damaged.fields['words']})"
    aborted = next((event for event in events if event.sign == "aborted"), None)
    if aborted is None and kind.number == _CRASH and (before := _complaint(logs, events)):
        return f"; right before it: {before[:_MOST_OF_TEXT]}; why is not in these lines"
    if aborted is None:
        return "; why is not in these lines" if kind.number == _ABORT else ""
    if thrown := aborted.fields.get("thrown"):
        said_of_it = _thrown(logs, events)
        words = f": {said_of_it[:_MOST_OF_TEXT]}" if said_of_it else ""
        open_ = "; the error behind it is not in these lines" if _PASSED_ON.search(said_of_it) else ""
        return f": C++ raised {thrown}{words}{open_}"
    if "without an active" in aborted.text:
        return ": its program was left (sys.exit, an exception) while its threads ran"
    return ""


def _complaint(logs: Logs, events: list[LogEvent]) -> str:
    """What a library complained of a few lines above a crash, which may be why."""
    first = events[0]
    complaints = (event for event in events_of(logs, "complaint") if event.file == first.file)
    return next((event.text.strip() for event in complaints if 0 < first.line - event.line <= _NEAR), "")


def _native(logs: Logs, events: list[LogEvent]) -> str:
    """The innermost function of a crash below its line, and the library or file that it is in."""
    first = events[0]
    frames = (event for event in events_of(logs, "native-frame") if event.file == first.file)
    frame = next((event.fields for event in frames if 0 <= event.line - first.line <= _STACK_LINES), None)
    if frame is None:
        return ""
    return stood_in(frame)


def stood_in(frame: LogFields) -> str:
    """The function of a frame, and the library or file that it is in."""
    name = first_named(frame, "function", "named", "walked", "stacked")
    place = first_named(frame, "library", "source", "from", "at")
    return f"{name}() of {place.rpartition('/')[2]}" if place else f"{name}()"


def _by_mpi(events: list[LogEvent]) -> list[Remedy]:
    """What helps where MPI was given a tensor on a GPU."""
    if not any(_NOT_OURS in event.text for event in events):
        return []
    return [
        you("Where MPI sends tensors: see whether it was built for GPUs; NCCL is.",
            "ompi_info --parsable --all | grep mpi_built_with_cuda_support:value",
            'dist.init_process_group("nccl")   # or tensor.cpu() before MPI sends it'),
    ]  # fmt: skip


def _asked(logs: Logs, events: list[LogEvent], kind: _SignalKind) -> list[Remedy]:
    """What would name the error that a call of NCCL only handed on."""
    if kind.number != _ABORT or not _PASSED_ON.search(_thrown(logs, events)):
        return []
    return [you("NCCL only hands an error on; let it and CUDA name what failed.", "export NCCL_DEBUG=INFO",
                "export CUDA_LAUNCH_BLOCKING=1")]  # fmt: skip


def _thrown(logs: Logs, events: list[LogEvent]) -> str:
    """What the exception of C++ says, that nobody caught."""
    aborted = next((event for event in events if "thrown" in event.fields), None)
    words = (event for event in events_of(logs, "cpp-what") if aborted and event.file == aborted.file)
    return next(
        (event.fields["text"] for event in words if aborted and 0 < event.line - aborted.line <= _NEAR), ""
    )


def _stood(threads: list[LogEvent]) -> str:
    """The innermost frame of a crash, and the first of it that is no library's."""
    frames = [match for thread in threads[:1] for match in _FRAME.finditer(thread.text)]
    own = next((frame for frame in frames if not frame["package"]), None)
    inner = [frame for frame in frames[:1] if frame is not own]
    callers = [
        f"{match['path']}:{match['line']} ({match['function']})" for match in (*inner, *([own] if own else []))
    ]
    return ", called at ".join(callers)


def _place(logs: Logs, events: list[LogEvent], kind: _SignalKind) -> Where:
    """The rank of torchrun's Root Cause block, where it tells the same end; else who said the first line.

    Python's own handler and a shell name no host: then it is the process that the others name as gone.
    """
    root = root_cause(logs)
    same = root and root.exitcode and root.exitcode.fields["exitcode"] == f"-{kind.number}"
    first = events[0]
    if root and same and not (first.host or first.rank is not None):
        return Where(node=root.host or None, rank=root.rank)
    return where(first) if root or first.host or first.rank is not None else where_it_went(logs)


def _remedies(kind: _SignalKind) -> list[Remedy]:
    if kind.number == _BUS:
        return [admin("Confirm on its host, within the container.", *kind.confirm.split("; ")),
                you("Give the container more shared memory (a pod: an emptyDir of medium Memory at /dev/shm).",
                    "docker run --shm-size=16g ...", "docker run --ipc=host ..."),
                you("Or fewer loader workers and less prefetch.")]  # fmt: skip
    if kind.owner == "node":
        return [admin("Confirm on its host.", *kind.confirm.split("; ")),
                you("Fewer loader workers and less prefetch; more memory for the job (sbatch --mem, a pod's "
                    "resources.limits.memory, docker run --memory).")]  # fmt: skip
    return [
        you("Confirm: see where it was.", kind.confirm),
        you("The lines of that rank right before show what it did; let Python print the stack of a crash.",
            "export PYTHONFAULTHANDLER=1"),
        admin("Look whether the kernel knows more.", "dmesg -T | grep -iE 'segfault|trap|killed process'"),
    ]  # fmt: skip
