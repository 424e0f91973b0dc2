"""What rules about the inside of a node share: CUDA's answers in logs, groups by host, NCCL's version there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.findings import Evidence, Where, seen
from ncclcheck.reports.logged import by_host, process_of, said
from ncclcheck.reports.variables import Version, as_version

BY_NCCL = ("nccl-cuda-failure",)
BY_ALL = (*BY_NCCL, "torch-cuda-error", "tests-cuda-failure")


def cuda_errors(logs: Logs, *texts: str, by: tuple[str, ...] = BY_ALL) -> list[LogEvent]:
    """The lines in which CUDA answered with one of these errors."""
    return [event for event in said(logs, *by) if any(text in event.fields.get("error", "") for text in texts)]


def hosts(events: Iterable[LogEvent]) -> Iterator[tuple[Where, list[LogEvent]]]:
    """The lines of each host, the first in a log first; those of nobody known only where there are no others."""
    groups = by_host(sorted(events, key=lambda event: event.order))
    named = {host: found for host, found in groups.items() if host} or groups
    for host, found in named.items():
        ranks = {event.rank for event in found}
        yield Where(node=host or None, rank=ranks.pop() if len(ranks) == 1 else None), found


def on(where: Where) -> str:
    """The end of a sentence: the host, else the rank, as far as it is known."""
    if where.node:
        return f" on {where.node}"
    return "" if where.rank is None else f" on the node of rank {where.rank}"


def ranks(events: Iterable[LogEvent]) -> str:
    """How many processes said it, as far as they can be told apart: `1 rank`, `8 ranks`."""
    number = len({(event.host, event.pid, event.rank) for event in events})
    return "1 rank" if number < 2 else f"{number} ranks"


def version_of(logs: Logs, event: LogEvent) -> Version | None:
    """NCCL's version in the process that wrote the line, else the one that the log tells."""
    return as_version(version_text(logs, event))


def version_text(logs: Logs, event: LogEvent) -> str:
    """The same as text, empty where no line tells it."""
    process = process_of(logs, event)
    told = (one.version for one in logs.processes if one.version)
    return (process.version if process else "") or logs.version or next(told, "")


def version_seen(logs: Logs, event: LogEvent) -> list[Evidence]:
    """NCCL's version as evidence, where it is known."""
    told = version_text(logs, event)
    return [seen("NCCL", told)] if told else []


def setting(logs: Logs, name: str) -> str:
    """The value of a variable as NCCL told of it on any process; empty where none did."""
    return next((one.settings[name] for one in logs.processes if name in one.settings), "")


def settings_seen(logs: Logs, *names: str) -> list[Evidence]:
    """Those of these variables that are set, as evidence."""
    return [seen("NCCL", f"{name}={value}") for name in names if (value := setting(logs, name))]


def in_one_process(event: LogEvent, others: Iterable[LogEvent]) -> bool:
    """Whether the writer of a line wrote one of the others too."""
    return any((event.host, event.pid) == (one.host, one.pid) for one in others)


def in_nvls(logs: Logs) -> list[LogEvent]:
    """CUDA's refusals in NCCL's nvls.cc; error 401 comes from nowhere else, full memory is another matter."""
    passed = said(logs, "nvls-passed-on")
    told = [event for event in cuda_errors(logs, "", by=BY_NCCL) if "out of memory" not in event.fields["error"]]
    return [
        event
        for event in told
        if event.fields.get("place", "").startswith("transport/nvls")
        or "performed in the present state" in event.fields["error"]
        or in_one_process(event, passed)
    ]


def starting(process: LogProcess) -> bool:
    """Whether NCCL began in it, and no communicator, or not each, was complete when the log ended.

    Before 2.18.3 only the end of a start was told.
    """
    return process.began > process.completed or (process.bootstrap is not None and process.completed == 0)
