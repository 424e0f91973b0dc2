"""LOG050 to LOG053: the memory that ranks of one node share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, admin, you
from ncclcheck.reports.subjects.logs.logged import cause, events_of, log_rule
from ncclcheck.reports.subjects.logs.logged_node import (
    NO_MEMORY,
    cuda_errors,
    hosts,
    in_one_process,
    on,
    ranks,
    shm_refused,
)
from ncclcheck.reports.subjects.logs.reported import set_apart, settings_seen, starting, version, version_seen
from ncclcheck.reports.text.words.fold import size

_FULL = "No space left on device"
_GONE = "No such file or directory"
CHOICES = ("NCCL_SHM_DISABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")  # of a transport, whose peers LOG191 compares
_HOST_MEMORY_BEGINS, _HOST_MEMORY_FALLS_BACK = (2, 24, 0), (2, 26, 5)
_LARGER = [
    you("Confirm: look at its size inside of the container.", "df -h /dev/shm", "ls -l /dev/shm | head"),
    you("Start the container with more.", "docker run --shm-size=8g ...", "docker run --ipc=host ..."),
    you(
        "In Kubernetes mount an emptyDir of medium Memory at /dev/shm.",
        "kubectl explain pod.spec.volumes.emptyDir",
    ),
    admin("Outside of containers make the tmpfs larger.", "mount -o remount,size=50% /dev/shm"),
]


def _error(event: LogEvent) -> str:
    return event.fields.get("error", "")


def _full(event: LogEvent) -> bool:
    """Some versions do not tell the error, of an extension or of a segment that was to be made."""
    unsaid = event.sign == "shm-extend" or event.fields.get("doing") == "creating"
    return _error(event) == _FULL or (unsaid and not _error(event))


def _refused(logs: Logs) -> list[LogEvent]:
    return [event for event in shm_refused(logs) if _error(event) not in ("", _GONE, _FULL, NO_MEMORY)]


@log_rule("LOG050", "/dev/shm has room for NCCL")
def room(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL could not make its files in /dev/shm as large as it needs them.

    ## Why it matters
    Ranks of a node that do not reach each other's GPU memory talk through /dev/shm, in files of 9 MB and more.
    Docker and Kubernetes give a container 64 MB. The rank that finds it full dies in the start, all others with
    "Connection closed by remote peer".

    ## Seen as
    dies

    ## How we know
    `Call to posix_fallocate failed : No space left on device` (such as 2.7), `Error: failed to extend
    /dev/shm/nccl-... to N bytes`, in later versions with the error: only `No space left on device` is this
    (`Cannot allocate memory` is a limit of the process, LOG106). torch
    repeats only NCCL's last words, `Error while creating shared memory segment /dev/shm/nccl-... (size N)`:
    without an error, that is this one too, unless another line shows a refusal. A bus error (SIGBUS) whose stack
    has `ncclShmOpen` is the same: the memory behind the file was not there.

    ## Fix
    - **you** `docker run --shm-size=8g` or `--ipc=host`; in Kubernetes an emptyDir of medium Memory at /dev/shm.
    - **admin** a larger tmpfs; remove files that dead jobs left: `rm /dev/shm/nccl-*` while no job runs.

    ## Source
    NVIDIA/nccl#342, NVIDIA/nccl#290, pytorch/torchtitan#853, pytorch/ci-infra#490; NCCL user guide,
    Troubleshooting, Shared memory; tmpfs(5).
    """
    if frames := events_of(logs, "shm-frame") if events_of(logs, "bus-error") else []:
        yield cause(
            [*events_of(logs, "bus-error"), *frames],
            f"/dev/shm is full: a bus error (SIGBUS) in {_function(frames[0])} of NCCL",
            why="The file was made, and there was no memory for it when NCCL wrote there.",
            owner="node",
            fix=_LARGER,
            more=version_seen(logs, frames[0]),
        )
        return
    refused = _refused(logs)
    for where, events in hosts(event for event in shm_refused(logs) if _full(event)):
        if not any(_error(event) for event in events) and any(event in refused for event in shm_refused(logs)):
            continue
        asked = next((event.fields["bytes"] for event in events if event.fields.get("bytes")), "")
        wanted = f": {size(int(asked))} more could not be had" if asked and int(asked) else ""
        yield cause(
            events,
            f"/dev/shm is full{on(where)}{wanted}",
            why="Ranks of a node exchange data through it, and the rank that gets no room ends the job.",
            owner="node",
            fix=_LARGER,
            at=where,
            more=version_seen(logs, events[0]),
        )


def _function(frame: LogEvent) -> str:
    return frame.fields.get("function") or frame.fields["symbol"]


@log_rule("LOG051", "NCCL may use /dev/shm")
def allowed(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    /dev/shm refuses NCCL's files for another reason than room: permission, a read-only mount, a file system that
    cannot reserve space.

    ## Why it matters
    NCCL has no other place for what ranks of a node share, and ends with an unhandled system error.

    ## Seen as
    dies

    ## How we know
    `Call to shm_open failed : Permission denied`, `failed to create shared memory file ... error Permission denied
    (13)`, `failed to extend ... error: Operation not supported (95)`; `File too large (27)`: the process may write
    no file of that size (ulimit -f), which has nothing to do with the room in /dev/shm.

    ## Fix
    - **admin** `chmod 1777 /dev/shm`, and a tmpfs there: `mount -t tmpfs -o mode=1777 tmpfs /dev/shm`.
    - **you** in a container mount no directory of yours over /dev/shm; `--ipc=host` uses the node's.

    ## Source
    NVIDIA/nccl#328; shm_overview(7), tmpfs(5).
    """
    fix = [
        you("Confirm: its mode must be 1777, and its type tmpfs.", "stat -c '%a %U' /dev/shm", "findmnt /dev/shm"),
        admin("Let everybody write.", "chmod 1777 /dev/shm", "mount -o remount,rw /dev/shm"),
        you("In a container use the node's own.", "docker run --ipc=host ..."),
    ]
    for where, events in hosts(_refused(logs)):
        if limit := _LIMITS.get(_error(events[0])):
            yield _limited(where, events, limit)
            continue
        why = "Ranks of a node exchange data through it, and NCCL cannot start without it."
        what = f"/dev/shm refuses NCCL's files{on(where)}: {_error(events[0])}"
        yield cause(events, what, why=why, owner="node", fix=fix, at=where)


def _limited(where: Where, events: list[LogEvent], limit: _FileLimit) -> Finding:
    return cause(
        events,
        limit.what.format(on(where)),
        why=limit.why,
        owner="job",
        fix=[
            you("Confirm: look at the limit as the launcher hands it on.",
                f"srun bash -c 'ulimit -S{limit.letter}; ulimit -H{limit.letter}'"),
            you("Raise it before the ranks start.", f"ulimit -{limit.letter} {limit.raised}"),
            admin("Raise the hard limit, also of the service that starts jobs.", *limit.services),
        ],
        at=where,
    )  # fmt: skip


class _FileLimit(NamedTuple):
    """A limit of the process that shows as an error of its files. what: with where; letter: of ulimit."""

    what: str
    why: str
    letter: str
    raised: str
    services: tuple[str, ...]


_LIMITS = {
    "File too large": _FileLimit(
        "a limit on the size of files (ulimit -f) keeps NCCL from making its files in /dev/shm{}",
        "NCCL's files of shared memory have 9 MB and more, and count as files of the process: EFBIG.",
        "f",
        "unlimited",
        (
            "grep -rn fsize /etc/security/limits.conf /etc/security/limits.d",
            "systemctl show slurmd docker -p LimitFSIZE",
        ),
    ),
    "Too many open files": _FileLimit(
        "the limit of open files (ulimit -n) is reached{}: a file in /dev/shm could not be opened",
        "Each connection and each piece of shared memory takes a file descriptor of the process (EMFILE).",
        "n",
        "$(ulimit -Hn)",
        ("systemctl show slurmd docker -p LimitNOFILE",),
    ),
}


@log_rule("LOG052", "files in /dev/shm persist while a job runs")
def stays(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A file of NCCL in /dev/shm is gone when another rank of the node wants it, or when its owner removes it.

    ## Why it matters
    systemd-logind removes all shared memory of a user when the last login session ends (RemoveIPC), also that of
    jobs which mpirun or Slurm run. Ranks in containers that have the node's name but a /dev/shm each see the same.

    ## How we know
    `unlink shared memory /dev/shm/nccl-... failed, error: No such file or directory` is a warning; `Error while
    attaching to shared memory segment` with a usual name, a size and that error ends the job. It is not named
    where another line says that the owner itself could not make the file, or that the name is damaged (LOG053).

    ## Fix
    - **admin** `RemoveIPC=no` in /etc/systemd/logind.conf, and restart systemd-logind.
    - **you** containers of one job on a node: `--ipc=host` for all, or names of their own (no `--uts=host`).

    ## Source
    NCCL user guide, Troubleshooting, Runtime issues; logind.conf(5), shm_overview(7).
    """
    fix = [
        you(
            "Confirm: no means that it is not this.",
            "loginctl show-logind -p RemoveIPC || grep -i RemoveIPC /etc/systemd/logind.conf",
        ),
        admin(
            "Let shared memory outlive sessions.",
            "sed -i 's/^#*RemoveIPC=.*/RemoveIPC=no/' /etc/systemd/logind.conf",
            "systemctl restart systemd-logind",
        ),
        you("With containers: one /dev/shm for all ranks of the node.", "docker run --ipc=host ..."),
    ]
    unlinked = events_of(logs, "shm-unlink")
    missing = [event for event in events_of(logs, "shm-segment") if _is_missing(event)]
    if any(_full(event) for event in shm_refused(logs)):
        missing = []
    began = [process for process in logs.processes if starting(process)]
    for where, events in hosts([*missing, *unlinked]):
        ends = any(event in missing for event in events) or any(process.host == where.node for process in began)
        what = (
            "files of NCCL vanish from /dev/shm"
            if unlinked
            else "a rank does not find another one's shared memory"
        )
        both = "" if unlinked else ": it was removed, each has a /dev/shm of its own, or NCCL lost it"
        why = "What ranks of a node share is taken away, and the next one that needs it dies."
        why += "" if unlinked else " Where neither is so, NCCL itself may have lost it: try another release."
        state = State.FAIL if ends else State.WARN
        yield cause(events, f"{what}{on(where)}{both}", why=why, owner="node", fix=fix, at=where, state=state)


def _is_missing(event: LogEvent) -> bool:
    """Some versions tell no error here, but `Call to open failed` before it."""
    gone = event.fields["doing"] == "attaching to" and _error(event) in ("", _GONE)
    return gone and not _damaged(event)


def _damaged(event: LogEvent) -> bool:
    """A name or a size that no rank has made: the other rank had used another kind of memory, and wrote no "
    "name."""
    path, bytes_ = event.fields.get("path", ""), event.fields.get("bytes", "")
    tail = path.removeprefix("/dev/shm/nccl-")
    return path.startswith("/dev/shm/nccl-") and (bytes_ == "0" or not (tail.isascii() and len(tail) >= 6))


@log_rule("LOG053", "NCCL's host memory (cuMem) works on all ranks of a node")
def host_memory(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL's shared host memory by CUDA (cuMem, on by default since 2.24) fails, or works on some ranks of a node
    only.

    ## Why it matters
    It is bound to NUMA nodes. In containers without SYS_NICE, in virtual machines and on NUMA nodes without
    memory the driver refuses it with errors that speak of GPUs: "out of memory" with empty GPUs, "invalid
    device ordinal". Where only some ranks notice and fall back to /dev/shm, the others hand them a name that is
    none.

    ## Seen as
    out of memory

    ## How we know
    `Error while attaching to shared memory segment /dev/shm/nccl-` with size 0 or a damaged name; such an error of
    CUDA in NCCL's shared memory transport of 2.24 to 2.26.4. From 2.26.5 on NCCL tries it and falls back, which it
    says; where all ranks fall back it is a warning, for /dev/shm must then be large enough.

    ## Fix
    - **you** NCCL_CUMEM_HOST_ENABLE=0 on all ranks; `docker run --cap-add SYS_NICE`; NCCL 2.26.5 or later.
    - **admin** `numactl -H` shows NUMA nodes without memory.

    ## Source
    NVIDIA/nccl#2190, NVIDIA/nccl#2059, pytorch/pytorch#152302; NCCL user guide, Troubleshooting, Shared memory.
    """
    broken = [] if set_apart(logs, CHOICES) else unnamed(logs)
    broken += host_memory_failures(logs)
    back = events_of(logs, "cumem-host-fallback")
    all_evidence = settings_seen(logs, "NCCL_CUMEM_HOST_ENABLE")
    for where, events in hosts(broken):
        yield cause(
            events,
            f"NCCL's shared host memory (cuMem) does not work on all ranks{on(where)}",
            why="The driver refuses memory of the host to some ranks, and the others wait for it or die.",
            owner="node",
            fix=_HOST_MEMORY,
            at=where,
            more=[*version_seen(logs, events[0]), *all_evidence],
        )
    if not broken:
        yield from (_fell_back(where, own) for where, own in hosts(back))


def unnamed(logs: Logs) -> list[LogEvent]:
    """Segments whose name or size the rank that should have made them never wrote."""
    return [event for event in events_of(logs, "shm-segment") if _damaged(event)]


_HOST_MEMORY: list[Remedy] = [
    you(
        "Confirm: it runs by the older method, /dev/shm.",
        "export NCCL_CUMEM_HOST_ENABLE=0",
        "numactl -H",
    ),
    you("Let containers bind memory.", "docker run --cap-add SYS_NICE ..."),
    you("Use NCCL 2.26.5 or later, which tries it first.", "python -m pip install -U 'nvidia-nccl-cu12>=2.26.5'"),
    admin("Give every NUMA node memory, or hide the empty ones.", "numactl -H", "dmidecode -t memory"),
]


def host_memory_failures(logs: Logs) -> list[LogEvent]:
    """CUDA's errors in NCCL's shared memory transport of the versions that do not fall back."""
    events = cuda_errors(
        logs, "out of memory", "invalid device ordinal", "invalid argument", by=("nccl-cuda-failure",)
    )
    passed = events_of(logs, "shm-passed-on")
    return [event for event in events if _of_host_memory(logs, event, passed)]


def may_be_of_host_memory(logs: Logs, event: LogEvent) -> bool:
    """Whether NCCL said it, of a version that asks CUDA for host memory and does not fall back."""
    known = version(logs, event) if event.sign == "nccl-cuda-failure" else None
    return known is not None and _HOST_MEMORY_BEGINS <= known < _HOST_MEMORY_FALLS_BACK


def _of_host_memory(logs: Logs, event: LogEvent, passed: list[LogEvent]) -> bool:
    by_place = event.fields.get("place", "").startswith(("transport/shm", "allocator"))
    return may_be_of_host_memory(logs, event) and (by_place or in_one_process(event, passed))


def _fell_back(where: Where, events: list[LogEvent]) -> Finding:
    return cause(
        events,
        f"{ranks(events)} fell back to /dev/shm{on(where)}, for CUDA gives no memory of the host",
        why="It works, but /dev/shm must be large enough, and ranks that do not fall back would not "
        "understand them.",
        owner="node",
        state=State.WARN,
        at=where,
        fix=[
            you("Confirm: the same on every rank, and /dev/shm has room.", "df -h /dev/shm", "numactl -H"),
            you("Let containers bind memory.", "docker run --cap-add SYS_NICE ..."),
            you("Or choose the older method on all ranks.", "export NCCL_CUMEM_HOST_ENABLE=0"),
        ],
    )
