"""Lines that tell of a failure and name no cause that is known: what a job died of without a word of why."""

from __future__ import annotations

import re
from typing import NamedTuple

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.subjects.logs.ending import (
    COMPLAINTS,
    LEVELS,
    Ending,
    came_through,
    dealt_with,
    died,
    left_in_order,
    of_items,
)
from ncclcheck.reports.subjects.logs.words import meanings
from ncclcheck.reports.subjects.logs.words.wording import MILD, of_a_fault

# Said of a failure, and read by no rule on their own: what only another line explains.
_ALONE = frozenset(
    (
        *(
            "ended-badly",
            "complaint",
            "item-failed",
            "engine-dead",
            "traceback",
            "traceback-cut",
            "mpi-box",
            "root-cause-block",
            "root-cause-exit",
            "launcher-return-code",
        ),
        *(
            "watchdog-status",
            "gloo-timeout",
            "segfault-in-nccl",
            "aborted",
            "shell-signalled",
            "spawned-signalled",
        ),
        *("worker-died", "srun-task-exit", "tests-wrong-data", "last-error"),
    )
)
_SAID = (
    "ended-badly",
    *COMPLAINTS,
    "nccl-warning",
    "on-windows",
    "explains",
)  # words of failure, or the system, without a known sign
_OF_ANYTHING = ("dealt-with", "shell-time", "unreadable")  # any program may say so
# Warnings of NCCL's that end no job by themselves: it goes on without, and a rule tells what is lost.
ENDS_NO_JOB = frozenset(
    (
        *("ib-no-library", "ib-open-device", "ofi-no-provider", "kernel-shared-memory", "topology-file-missing"),
        *("shm-unlink", "ib-port-event", "sharp-refused"),
    )
)
_JUDGED = {*meanings.HARMLESS, *meanings.CONSEQUENCES, *ENDS_NO_JOB} - _ALONE  # what they mean is known
_OF_A_WORKER = 40  # lines between a worker's last word and the traceback's last line: 19 in torch's own
_STACK_OF_CPP = "Exception raised from "  # the line below a warning of torch's that carries one
_WARNING = re.compile(r"Warning$")


@derived
def unexplained(logs: Logs) -> list[LogEvent]:
    """The lines that can be a failure and were not survived, in the order of the files."""
    if is_foreign(logs):
        return []
    ending, gone, in_order = Ending(logs), died(logs), left_in_order(logs)
    services = only_services(logs)
    tries = {(event.file, event.line) for event in logs.events if meanings.of_one_try(event)}
    events = (
        event
        for event in logs.events
        if _can_be_a_failure(event)
        and not (services and meanings.of_a_service(event))
        and not (in_order and event.sign == "nccl-warning")
        and not _of_a_worker(logs, event)
        and not (event.text.startswith(_STACK_OF_CPP) and (event.file, event.line - 1) in tries)
    )
    of_samples = of_items(logs)
    return [
        event for event in events if gone or not ((event.file, event.line) in of_samples or ending.outlived(event))
    ]


def only_services(logs: Logs) -> bool:
    """Whether nothing complains but NCCL's service threads, whose sockets close at the end of a sound job, too."""
    bad = [event for event in logs.events if event.level in LEVELS or event.sign == "propagated"]
    harmless = {*meanings.HARMLESS}
    return any(meanings.of_a_service(event) for event in bad) and all(
        meanings.of_a_service(event) or event.sign in harmless for event in bad
    )


def is_foreign(logs: Logs) -> bool:
    """Whether no line is NCCL's, torch's, a launcher's or otherwise known."""
    known = any(event.sign not in (*_SAID, *_OF_ANYTHING) for event in logs.events)
    familiar = any(file.familiar for file in logs.files)
    return not (known or familiar or logs.processes or logs.version or logs.flight)


def _can_be_a_failure(event: LogEvent) -> bool:
    if event.sign in _JUDGED or event.sign == "dealt-with" or meanings.ends_nothing(event):
        return False
    if event.sign == "python-error":
        return not _WARNING.search(event.fields.get("type", ""))
    return event.sign in _ALONE or event.level in LEVELS


def _of_a_worker(logs: Logs, event: LogEvent) -> bool:
    """Whether C++'s word of an abort is that of a worker that ended as its loader was taken down."""
    if event.sign != "aborted" or not event.text.startswith("terminate called"):
        return False
    left = (event for event in logs.events if event.sign == "worker-killed" and meanings.ends_nothing(event))
    return any(
        killed.file == event.file
        and 0 < killed.line - event.line <= _OF_A_WORKER
        and killed.fields["signal"].startswith("Aborted")
        for killed in left
    )


def last_words(logs: Logs) -> list[LogEvent]:
    """Lines with the words of a known fault, after which no work and no start that came through is told.

    Also a name without an address, where nothing at all is told after it.
    """
    if is_foreign(logs):
        return []
    work = Ending(logs).just_after
    return [
        event
        for event in logs.events
        if (
            (event.sign == "explains" and not (MILD.match(event.text) or event.level) and of_a_fault(event.text))
            or (event.sign == "name-unresolved" and not _below(logs, event))
        )
        and work.get(event.file, 0) < event.line
        and not (came_through(logs, event) or dealt_with(logs, event))
    ]


def _below(logs: Logs, event: LogEvent) -> int:
    """How many lines stand below it in its file."""
    return next((file.lines - event.line for file in logs.files if file.name == event.file), 0)


class UsualCause(NamedTuple):
    """What usually stands behind a line that names no cause, and what would show it."""

    words: re.Pattern[str]
    usually: str
    shows: str
    command: str = ""


_RAY = "ls /tmp/ray/session_latest/logs"
_BEHIND = tuple(
    UsualCause(re.compile(words), usually, shows, command)
    for words, usually, shows, command in (
        (r"ncclSystemError|unhandled system error",
         "a socket, a segment of shared memory or an RDMA call failed on that host",
         "NCCL's warning names the call", "export NCCL_DEBUG=INFO"),
        (r"ncclUnhandledCudaError|unhandled cuda error",
         "a CUDA call failed: a broken GPU, memory that was used up, or an earlier kernel of the program",
         "NCCL's warning names the error of CUDA", "export NCCL_DEBUG=INFO"),
        (r"ncclInternalError|internal error",
         "NCCL did not find what it needs of the machine (topology, GPUs, network), or two builds of NCCL met",
         "NCCL's warning says what it missed", "export NCCL_DEBUG=INFO"),
        (r"ncclInvalid\w+|invalid (?:usage|argument)",
         "the program called NCCL with arguments that it rejects: two ranks on one GPU, different arguments",
         "NCCL's warning names the argument", "export NCCL_DEBUG=INFO"),
        (r"ncclRemoteError|remote process|Connection (?:closed|reset)|Broken pipe",
         "another rank ended first, and these lines follow from its end",
         "the log of the rank that ended first", ""),
        (r"EngineDead|EngineCore|Engine core|WorkerProc|executor",
         "a worker process of the engine ended; what it raised stands above, or in its own log",
         "the first traceback of a worker", "export VLLM_LOGGING_LEVEL=DEBUG NCCL_DEBUG=INFO"),
        (r"ActorDied|raylet|\bray\b|[Aa]ctor",
         "the process of the actor was killed or raised; Ray keeps what it printed",
         "Ray's own logs on the node of the actor", _RAY),
        (r"[Ww]atchdog|SeqNum|NCCL work|heartbeat|Heartbeat|timed out|[Tt]imeout",
         "a rank did not come to a collective, or was stopped before it",
         "torch's Flight Recorder names the rank and the call", "export TORCH_FR_BUFFER_SIZE=2000"),
        (r"-9\b|signal 9|SIGKILL|[Kk]illed|[Oo]ut of memory|\bOOM",
         "the kernel or the cgroup ended a process that used too much memory, or somebody killed it",
         "the kernel's log of that host", "dmesg -T | grep -iE 'oom|killed'"),
        (r"-1[01]\b|signal 1[01]|SIGSEGV|SIGBUS|[Ss]egmentation|[Bb]us error|core dumped",
         "a library wrote or read where it must not, or shared memory was full",
         "Python's stack at the time", "export PYTHONFAULTHANDLER=1"),
        (r"-6\b|signal 6|SIGABRT|[Aa]bort|terminate called",
         "a library gave up: an assertion, or an exception of C++ that nobody caught",
         "what was printed right before, and Python's stack", "export PYTHONFAULTHANDLER=1"),
        (r"exit ?code|exited|exit status|return ?code|Root Cause|ChildFailed|CalledProcess|FAILED",
         "one process raised an exception or called exit; its own output says which",
         "the output of each rank, in files of its own", "torchrun --log-dir logs --redirects 3 --tee 3 ..."),
        (r"Last error|NCCL error|NCCL WARN|DistBackend",
         "NCCL refused or could not go on; torch hands on its last words only",
         "NCCL's own warnings", "export NCCL_DEBUG=INFO"),
        (r"Traceback",
         "an exception, of which the last line is not here",
         "the log to its end, of each rank", ""),
    )
)  # fmt: skip
_ANYTHING = UsualCause(
    re.compile(""),
    "the program or a library gave up",
    "the lines before it, and NCCL's own",
    "export NCCL_DEBUG=INFO",
)


# Who does not speak of NCCL: what makes them say more. Looked at before the words of the line.
_SPEAKERS = tuple(
    UsualCause(re.compile(words), usually, shows, command)
    for words, usually, shows, command in (
        (r"\b(?:ORTE|PRTE|OPAL|orted|prted|HNP|mpirun|prterun)\b|[Oo]pen ?MPI|\bORTE_",
         "mpirun, or a daemon of its on another node, could not go on",
         "what mpirun and its daemons do, on the node that is named",
         "mpirun --mca plm_base_verbose 10 --mca oob_base_verbose 10 ..."),
        (r"\bMPICH\b|\bHYD\w|\bPMIU?_|\bMPID?[IU]?_\w|\[mpiexec@",
         "MPI could not start or go on", "what mpiexec does", "mpiexec -verbose ..."),
        (r"libfabric:|\bfi_\w{3,20}\(|\bcxip?_",
         "the network's provider did not find or get what it asked for", "libfabric's own log",
         "export FI_LOG_LEVEL=info"),
        (r"\bwith overrides: |HYDRA_FULL_ERROR",
         "the program raised an exception, which stands in no line here",
         "the whole traceback", "export HYDRA_FULL_ERROR=1"),
        (r"\b(?:srun|sbatch|slurmstepd|slurmd|salloc): ",
         "a task ended, or Slurm did", "what Slurm has on record",
         "sacct -j JOB -o JobID,State,ExitCode,NodeList; scontrol show job JOB"),
        (r"\bsglang/|scheduler_\d|\bSGLang\b",
         "a worker process of the server ended; what it raised stands above",
         "the first traceback of a worker", "python -m sglang.launch_server --log-level debug ..."),
        (r"\bvllm/|collective_rpc|\bVLLM_",
         "a worker process of the engine ended or raised; that stands above, or in its own log",
         "the first traceback of a worker", "export VLLM_LOGGING_LEVEL=DEBUG"),
        (r"\b[Hh]orovod(?:run)?\b", "one of Horovod's processes ended",
         "the output of each rank, in files of its own",
         "horovodrun --verbose --output-filename logs ..."),
        (r"a traceback without its last line", "an exception, of which the last line is not here",
         "the log to its end, of each rank", ""),
    )
)  # fmt: skip
_OF_NCCL = re.compile(r"NCCL|nccl|c10d|ProcessGroup|Watchdog|watchdog")
_OF_NOBODY = _ANYTHING._replace(
    shows="the output of each rank, in a file of its own",
    command="torchrun --log-dir logs --redirects 3 ...",
)


def behind(text: str, *, nccl: bool = True) -> UsualCause:
    """By who says it and by the words of the line. nccl: whether NCCL or torch's groups are in the log at all."""
    if not _OF_NCCL.search(text) and (by := next((kind for kind in _SPEAKERS if kind.words.search(text)), None)):
        return by
    return next((kind for kind in _BEHIND if kind.words.search(text)), _ANYTHING if nccl else _OF_NOBODY)


def of_nccl(logs: Logs) -> bool:
    """Whether a line of a log is NCCL's, or one of torch's groups': then NCCL can be made to say more."""
    return bool(logs.processes or logs.version or any(file.records for file in logs.files)) or any(
        _OF_NCCL.search(event.text) for event in logs.events
    )
