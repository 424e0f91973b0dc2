"""LOG106: host memory that a rank asks for."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, admin, you
from ncclcheck.reports.subjects.logs.logged import at_teller, by_known_host, cause, events_of, log_rule
from ncclcheck.reports.subjects.logs.logged_node import NO_MEMORY, shm_refused
from ncclcheck.reports.text.words.fold import size


@log_rule("LOG106", "ranks have enough host memory")
def allocated(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A rank, or a worker of its loader, asked for host memory and got none.

    ## Why it matters
    The process ends with an exception, and the others wait for it. A size far beyond the host's memory is a
    mistake in a shape; a small one means that the host, its cgroup or a `ulimit -v` was full.

    ## Seen as
    dies

    ## How we know
    `DefaultCPUAllocator: can't allocate memory: you tried to allocate N bytes` (torch), `Unable to allocate 37.3
    GiB for an array` (NumPy), Python's bare `MemoryError`. Where the kernel kills the process instead it is
    LOG093. `Error while creating shared memory segment /dev/shm/nccl-... error: Cannot allocate memory (12)` of
    NCCL is the same: /dev/shm has room (else: `No space left on device`), and the process may take no more.
    `Failed to CUDA host alloc N bytes` is memory of the host that CUDA locks.

    ## Fix
    - **you** look at the shape; load parts of the file (`mmap=True`, memory-mapped arrays); ask Slurm for more
      `--mem`; fewer workers; `ulimit -v unlimited`.
    - **admin** overcommit settings and the limits of the service that starts jobs.

    ## Source
    malloc(3), getrlimit(2), proc(5) (overcommit_memory); PyTorch documentation, torch.load; NumPy documentation,
    memmap; sbatch(1).
    """
    shared = [event for event in shm_refused(logs) if event.fields.get("error") == NO_MEMORY]
    yield from _pinned(logs)
    for host, events in by_known_host([*events_of(logs, "no-host-memory"), *shared]).items():
        yield cause(
            events,
            f"a process got no host memory{f' on {host}' if host else ''}{_size(events)}",
            why="The host, its cgroup or a limit of the process is full, or the size is a mistake.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("Confirm: compare the size with what there is and what may be taken.",
                    "free -g; ulimit -v; cat /sys/fs/cgroup/memory.max"),
                you("Where the size is right ask for more, or load it in parts.", "sbatch --mem=0 job.sh",
                    "python -c \"import torch; torch.load('FILE', mmap=True)\""),
                admin("Look at the kernel's rule for more memory than there is.", "sysctl vm.overcommit_memory"),
            ],
        )  # fmt: skip


def pinned(logs: Logs) -> list[LogEvent]:
    """NCCL's failures to get page-locked memory of the host, which CUDA too calls out of memory."""
    return [event for event in events_of(logs, "gpu-alloc") if event.fields.get("call") == "host alloc"]


def _pinned(logs: Logs) -> Iterator[Finding]:
    for host, events in by_known_host(pinned(logs)).items():
        yield cause(
            events,
            f"CUDA gives no page-locked memory of the host{f' on {host}' if host else ''}{_size(events)}",
            why="It is memory of the host and not of the GPU: the host or the job's cgroup is full, or a limit or "
            "the driver allows no more.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("Confirm: compare what there is with what may be taken.",
                    "free -g; ulimit -l; ulimit -v; cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.current"),
                you("Pin less: fewer workers with pin_memory, no offload to the host; ask Slurm for more memory.",
                    "sbatch --mem=0 job.sh"),
                admin("Look what the driver says.", "dmesg -T | grep -iE 'nvrm|oom|memory'"),
            ],
        )  # fmt: skip


def _size(events: list[LogEvent]) -> str:
    for fields in (event.fields for event in events):
        if asked := fields.get("bytes") or fields.get("asked") or fields.get("called"):
            return f": it asked for {size(int(asked))} at once"
        if "size" in fields:
            return f": it asked for {fields['size']} at once"
    return ""
