"""Variables of torch that decide whether a hang ends, whether it leaves a trace, and how much waits."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, at
from ncclcheck.reports.judgement.findings import Finding, State, note, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nccl.settings import Settings, nodes_with
from ncclcheck.reports.subjects.nccl.variables import as_version

_WAIT = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
_ASYNC = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
_BUFFERS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_RECORDS_BY_ITSELF = (2, 11, 0)  # torch whose Flight Recorder is on by default, with 2000 entries
_ENTRY_BYTES = 850  # of one entry with its stack; a rank with 2097152 of them held 1.7 GB
_DEFAULT_CONNECTIONS = 8  # Source: CUDA C++ Programming Guide, CUDA_DEVICE_MAX_CONNECTIONS
_MOST_CONNECTIONS = 32  # Source: the same; larger values are not taken


def _buffer(version: tuple[int, ...] | None) -> str:
    """What this torch calls it, without a warning."""
    return _BUFFERS[version is not None and version < (2, 8, 0)]


def _first(settings: Settings, names: tuple[str, ...]) -> str:
    """The name in force: torch looks for the new one first."""
    return next((name for name in names if name in settings.all), "")


@rule("NCC037", "blocking wait does not disable torch's watchdog", worst=State.WARN, needs=("job.variables",))
def two_ways(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    TORCH_NCCL_BLOCKING_WAIT=1, and TORCH_NCCL_ASYNC_ERROR_HANDLING beside it.

    ## Why it matters
    With blocking wait every `wait()` holds the program until the GPU is done: computation and communication no
    longer overlap. The watchdog that ends a hang by itself, and the Flight Recorder's dump, are then off whatever
    the other variable says; torch mentions it in its INFO log only.

    ## Seen as
    hangs, slow

    ## How we know
    The variables under their new and old names. Blocking wait alone is a note.

    ## Fix
    - **you** remove TORCH_NCCL_BLOCKING_WAIT; the watchdog is on by default.

    ## Source
    PyTorch documentation, Distributed communication package; torch c10d/ProcessGroupNCCL.cpp (2.2 and later).
    """
    for settings in nodes_with(cluster, *_WAIT):
        name, other = _first(settings, _WAIT), _first(settings, _ASYNC)
        if not settings.is_on(name):
            continue
        evidence = settings.evidence(*(variable for variable in (name, other) if variable))
        fix = [you("Remove it.", f"unset {name}")]
        why = "Every wait holds the program, and the watchdog that ends a hang is off."
        if other and settings.is_on(other):
            yield warn(
                settings.where, f"{name}=1 turns {other} off", why=why, owner="job", evidence=evidence, fix=fix
            )
        else:
            yield note(settings.where, f"{name}=1 is set", why=why, evidence=evidence, fix=fix)


@rule("NCC038", "torch's watchdog may end a job that hangs", worst=State.WARN, needs=("job.variables",))
def watchdog(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    TORCH_NCCL_ASYNC_ERROR_HANDLING=0, or TORCH_NCCL_ENABLE_MONITORING off.

    ## Why it matters
    When a rank dies, the others wait in NCCL on the GPU, where no time-out of Python reaches them. The watchdog
    ends them after the timeout of the process group; without it the job holds its nodes until its wall clock ends.
    The monitor does the same for a watchdog that is stuck itself, and writes the Flight Recorder's dump.

    ## Seen as
    hangs, dies

    ## How we know
    The variables under their new and old names. torchrun sets the first to 1 only where it is not set.

    ## Fix
    - **you** remove both; a longer `timeout=` of init_process_group is the way to be more patient.

    ## Source
    PyTorch documentation, Distributed communication package; torch c10d/ProcessGroupNCCL.hpp (2.2 and later).
    """
    for settings in nodes_with(cluster, *_ASYNC, "TORCH_NCCL_ENABLE_MONITORING"):
        for name in (_first(settings, _ASYNC), "TORCH_NCCL_ENABLE_MONITORING"):
            if name in settings.all and not settings.is_on(name) and settings.text(name):
                yield warn(
                    settings.where,
                    f"{name}={settings.text(name)}: nobody ends this job when it hangs",
                    why="Ranks that wait for a dead one then wait until the job's wall clock ends.",
                    owner="job",
                    evidence=settings.evidence(name),
                    fix=[you("Remove it.", f"unset {name}")],
                )


@rule(
    "NCC039",
    "torch's heartbeat timeout is not shorter than what it monitors",
    worst=State.WARN,
    needs=("job.variables",),
)
def heartbeat(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC below `NCC039.seconds` (120), or below the time for the dump.

    ## Why it matters
    The monitor kills a process whose watchdog was silent for that long. A watchdog is silent for a minute or two
    while CUDA loads modules, while a debugger or a slow file system holds the interpreter, and while the Flight
    Recorder is written: healthy jobs die with `watchdog got stuck for N seconds`, a hanging one without its dump.

    ## Seen as
    slow, dies

    ## How we know
    The variable and TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC as torch parses them.

    ## Fix
    - **you** remove it: the default is 480 seconds (600 in torch 2.2 and 2.3).

    ## Source
    torch c10d/ProcessGroupNCCL.hpp and ProcessGroupNCCL.cpp (2.1 and later).
    """
    least = cluster.policy.thresholds.get("NCC039.seconds", 120.0)
    name, dump = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"
    for settings in nodes_with(cluster, name):
        seconds = settings.number(name)
        wanted = max(least, (settings.number(dump) or 0) / 1000)
        if seconds is not None and 0 < seconds < wanted:
            yield warn(
                settings.where,
                f"{name}={seconds}: a process whose watchdog is silent for so long is killed",
                why="Loading of CUDA modules or a slow file system takes as long now and then.",
                owner="job",
                evidence=settings.evidence(name, dump),
                fix=[you("Remove it; the default is 480.", f"unset {name}")],
            )


@rule(
    "NCC040", "the Flight Recorder has something to dump", worst=State.WARN, needs=("job.variables", "stack.torch")
)
def flight_recorder(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    TORCH_NCCL_DUMP_ON_TIMEOUT=1 without a buffer, or without the monitor that writes the dump.

    ## Why it matters
    The Flight Recorder tells after a hang which rank did not come to which collective. Up to torch 2.10 its
    buffer is off by default: the dump that somebody asked for is empty, which is noticed after the hang of a long
    run.

    ## Seen as
    hangs

    ## How we know
    TORCH_FR_BUFFER_SIZE (TORCH_NCCL_TRACE_BUFFER_SIZE before 2.8) and TORCH_NCCL_ENABLE_MONITORING, by the
    version of torch. From 2.11 on the buffer holds 2000 entries by itself.

    ## Fix
    - **you** `export TORCH_FR_BUFFER_SIZE=2000` (entries; TORCH_NCCL_TRACE_BUFFER_SIZE in torch 2.2 to 2.7).

    ## Source
    PyTorch documentation, Flight Recorder; torch c10d/FlightRecorder.hpp; pytorch/torchtitan#1748.
    """
    for settings in nodes_with(cluster, "TORCH_NCCL_DUMP_ON_TIMEOUT"):
        buffer = _first(settings, _BUFFERS)
        version = as_version(at(settings.node, "stack.torch"))
        by_itself = version is not None and version >= _RECORDS_BY_ITSELF
        empty = not settings.number(buffer) if buffer else not by_itself
        unwatched = settings.text("TORCH_NCCL_ENABLE_MONITORING") and not settings.is_on(
            "TORCH_NCCL_ENABLE_MONITORING"
        )
        if not settings.is_on("TORCH_NCCL_DUMP_ON_TIMEOUT") or not (empty or unwatched):
            continue
        lacks = "its buffer has no entries" if empty else "the monitor that writes it is off"
        yield warn(
            settings.where,
            f"a dump is asked for on a timeout, and {lacks}",
            why="After a hang nothing shows which rank did not reach which collective.",
            owner="job",
            evidence=settings.evidence("TORCH_NCCL_DUMP_ON_TIMEOUT", *_BUFFERS, "TORCH_NCCL_ENABLE_MONITORING"),
            fix=[you("Give it a buffer of 2000 entries.", f"export {_buffer(version)}=2000")],
        )


_MANY_ENTRIES = 100_000  # 85 MB at some 850 bytes an entry; torch's own default is 2000


@rule(
    "NCC061",
    "the Flight Recorder's buffer size is a number of entries",
    worst=State.WARN,
    needs=("job.variables",),
)
def entries(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    TORCH_FR_BUFFER_SIZE or TORCH_NCCL_TRACE_BUFFER_SIZE above `NCC061.entries` (100000).

    ## Why it matters
    The number is one of collectives that are kept, not one of bytes. 2097152, which was meant as 2 MiB, keeps two
    million of them: some 850 bytes each, 1.7 GB of host memory for every rank, and a dump of that size that eight
    ranks write at once when the job hangs, and that does not get done before they are killed.

    ## Seen as
    hangs, dies

    ## How we know
    The variable, as torch parses it.

    ## Fix
    - **you** `export TORCH_FR_BUFFER_SIZE=2000` (TORCH_NCCL_TRACE_BUFFER_SIZE in torch 2.2 to 2.7); 20000 covers
      hours of most jobs.

    ## Source
    PyTorch documentation, Flight Recorder (the number of entries); torch c10d/FlightRecorder.hpp (max_entries).
    """
    most = cluster.policy.thresholds.get("NCC061.entries", float(_MANY_ENTRIES))
    for settings in nodes_with(cluster, *_BUFFERS):
        name = _first(settings, _BUFFERS)
        number = settings.number(name)
        if number is None or number <= most:
            continue
        yield warn(
            settings.where,
            f"{name}={number} keeps as many collectives: about {number * _ENTRY_BYTES / 1e9:.1f} GB a rank",
            why="It counts entries, not bytes. Memory fills as the job runs, and the dump is not done in time.",
            owner="job",
            evidence=settings.evidence(name),
            fix=[you("Keep some thousand.", f"export {name}=2000")],
        )


@rule("NCC043", "CUDA_DEVICE_MAX_CONNECTIONS suits the job's parallelism", worst=State.WARN,
      needs=("job.variables",))  # fmt: skip
def connections(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    CUDA_DEVICE_MAX_CONNECTIONS: the number of queues between host and GPU.

    ## Why it matters
    Megatron's tensor parallel layers need 1, so that a collective is started before the computation that hides
    it. Copied into an FSDP or DDP job, 1 puts all streams into one queue, and communication waits behind
    computation that it does not depend on.

    ## How we know
    The variable. Outside of 1 to 32 it is a warning; 1 is a note, for the job's parallelism is not known here.

    ## Fix
    - **you** for FSDP and DDP remove it; keep 1 for Megatron's tensor or context parallelism.

    ## Source
    NVIDIA Megatron Core, Megatron-FSDP guide; CUDA programming guide, environment variables (default 8).
    """
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    for settings in nodes_with(cluster, name):
        number = settings.number(name)
        if number is None or not 1 <= number <= _MOST_CONNECTIONS:
            yield warn(
                settings.where,
                f"{name}={settings.text(name)} is not within 1 to {_MOST_CONNECTIONS}",
                why=f"CUDA does not take it, and the default of {_DEFAULT_CONNECTIONS} may not be what was meant.",
                owner="job",
                evidence=settings.evidence(name),
                fix=[you("Correct or remove it.", f"unset {name}")],
            )
        elif number == 1:
            why = "Right for Megatron's tensor parallelism; FSDP and DDP overlap worse with it."
            yield note(settings.where, f"{name}=1 is set", why=why, evidence=settings.evidence(name),
                       fix=[you("Without tensor parallelism, remove it.", f"unset {name}")])  # fmt: skip
