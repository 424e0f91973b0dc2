"""What rules about the inside of a node share: CUDA's answers in logs, and lines by host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Where
from ncclcheck.reports.subjects.logs.logged import by_known_host, events_of

BY_NCCL = ("nccl-cuda-failure",)
BY_ALL = (*BY_NCCL, "torch-cuda-error", "tests-cuda-failure")
NO_MEMORY = "Cannot allocate memory"  # ENOMEM: of the process or its cgroup, and not of the tmpfs


def shm_refused(logs: Logs) -> list[LogEvent]:
    """All lines about a file in /dev/shm that could not be had."""
    return events_of(logs, "shm-extend", "shm-call", "shm-create", "shm-segment")


def cuda_errors(logs: Logs, *texts: str, by: tuple[str, ...] = BY_ALL) -> list[LogEvent]:
    """The lines in which CUDA answered with one of these errors."""
    return [
        event for event in events_of(logs, *by) if any(text in event.fields.get("error", "") for text in texts)
    ]


def hosts(events: Iterable[LogEvent]) -> Iterator[tuple[Where, list[LogEvent]]]:
    """The lines of each host, the first in a log first; those of nobody known only where there are no others."""
    for host, lines in by_known_host(events).items():
        ranks = {event.rank for event in lines if event.rank is not None}  # what() of C++ has no prefix
        yield Where(node=host or None, rank=ranks.pop() if len(ranks) == 1 else None), lines


def on(where: Where) -> str:
    """The end of a sentence: the host, else the rank, as far as it is known."""
    if where.node:
        return f" on {where.node}"
    return "" if where.rank is None else f" on the node of rank {where.rank}"


def ranks(events: Iterable[LogEvent]) -> str:
    """How many processes said it, as far as they can be told apart: `1 rank`, `8 ranks`."""
    writers = {(event.host, event.pid, event.rank) for event in events}
    known = {
        writer for writer in writers if writer[1:] != (None, None)
    }  # a line without either repeats what one of them said
    number = len(known or writers)
    return "1 rank" if number < 2 else f"{number} ranks"


def in_one_process(event: LogEvent, others: Iterable[LogEvent]) -> bool:
    """Whether the writer of a line wrote one of the others too."""
    return any((event.host, event.pid) == (other.host, other.pid) for other in others)


# Of CUDA's errors, those that mean the same whichever call returns them: a fault of a kernel or of the GPU that
# stays, a driver, a process that ends, a capture. Source: CUDA Runtime API, cudaError_t
ANYWHERE = re.compile(
    r"out of memory|illegal memory access|device-side assert|stack error|illegal instruction|misaligned address"
    r"|program counter|launch failure|launch timed out|uncorrectable|contained|kernel image|symbol not found"
    r"|insufficient for CUDA|stub library|compatibility|driver combination|PTX|toolchain|MPS|no CUDA-capable"
    r"|busy or unavailable|already in use|shutting down|context is destroyed|invalid device context|captur"
    r"|not yet initialized|license"
)


def in_nvls(logs: Logs) -> list[LogEvent]:
    """CUDA's refusals in NCCL's nvls.cc; error 401 comes from nowhere else; not those of ANYWHERE."""
    passed = events_of(logs, "nvls-passed-on")
    events = [event for event in cuda_errors(logs, "", by=BY_NCCL) if not ANYWHERE.search(event.fields["error"])]
    return [
        event
        for event in events
        if event.fields.get("place", "").startswith("transport/nvls")
        or "performed in the present state" in event.fields["error"]
        or in_one_process(event, passed)
    ]
