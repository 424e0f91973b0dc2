"""What processes told of themselves in a log: NCCL's version, settings, addresses, hosts, whether NCCL came up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ncclcheck.probes.facts import Endpoint, LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.findings import Evidence, seen
from ncclcheck.reports.subjects.logs.logged import process_of
from ncclcheck.reports.subjects.nccl.variables import Version, as_version
from ncclcheck.reports.text.words.fold import fold_ranks


def version(logs: Logs, event: LogEvent) -> Version | None:
    """NCCL's version in the process that wrote the line, else the one that the log tells."""
    return as_version(_version(logs, event))


def version_seen(logs: Logs, event: LogEvent) -> list[Evidence]:
    """The same as evidence, where it is known."""
    known = _version(logs, event)
    return [seen("NCCL", known)] if known else []


def _version(logs: Logs, event: LogEvent) -> str:
    process = process_of(logs, event)
    versions = (process.version for process in logs.processes if process.version)
    return (process.version if process else "") or logs.version or next(versions, "")


def one_version(logs: Logs) -> str:
    """NCCL's version where processes of several hosts, or of all hosts that speak, tell the same; else empty."""
    versions = {process.host: process.version for process in logs.processes if process.version}
    hosts = {process.host for process in logs.processes}
    alike = len({process.version for process in logs.processes if process.version}) == 1
    return next(iter(versions.values())) if alike and (len(versions) > 1 or versions.keys() == hosts) else ""


def setting(logs: Logs, name: str, event: LogEvent | None = None) -> str | None:
    """What a variable is set to in the process that wrote the line, else in any."""
    own = process_of(logs, event) if event else None
    processes = [own] if own else logs.processes
    return next((process.settings[name] for process in processes if name in process.settings), None)


def settings_seen(logs: Logs, *names: str) -> list[Evidence]:
    """Those of these variables that are set, as evidence."""
    return [seen("environment", f"{name}={value}") for name in names if (value := setting(logs, name)) is not None]


def set_apart(logs: Logs, names: Sequence[str]) -> str:
    """`NCCL_BUFFSIZE=65536 on rank 1 alone`, of ranks that began and so print what they read; empty: all alike."""
    begun = {
        process.rank: process.settings
        for process in logs.processes
        if process.rank is not None and _chose(process)
    }
    for name in names:
        values = Counter(settings.get(name) for settings in begun.values())
        if len(values) > 1:
            rare = min((value for value in values if value is not None), key=lambda value: values[value])
            ranks = fold_ranks(rank for rank, settings in begun.items() if settings.get(name) == rare)
            return f"{name}={rare} on {ranks} alone"
    return ""


def _chose(process: LogProcess) -> bool:
    """Whether it came so far that it has read how it is to hand on data."""
    return bool(process.nranks and (process.completed or process.rings or process.trees or process.vias))


def ends(process: LogProcess) -> list[Endpoint]:
    """Every interface that NCCL took in it."""
    return [*([process.bootstrap] if process.bootstrap else []), *process.interfaces]


def hosts_with(logs: Logs, address: str) -> list[str]:
    """The hosts that told this address as their own."""
    addresses = (
        (process.host, end.address.partition("%")[0]) for process in logs.processes for end in ends(process)
    )
    return sorted({host for host, own in addresses if own == address}) if address else []


def owner_of(logs: Logs, address: str) -> str:
    """The one host that has an address; empty where none tells it, or several do."""
    hosts = hosts_with(logs, address)
    return hosts[0] if len(hosts) == 1 else ""


def processes_by_host(logs: Logs) -> dict[str, list[LogProcess]]:
    """Host -> its processes."""
    grouped: dict[str, list[LogProcess]] = {}
    for process in logs.processes:
        grouped.setdefault(process.host, []).append(process)
    return grouped


def several_hosts(logs: Logs) -> bool:
    """Whether the job has several hosts, as far as a log tells."""
    return len({process.host for process in logs.processes}) > 1 or any(
        (process.nnodes or 0) > 1 for process in logs.processes
    )


def within_a_host(logs: Logs) -> bool:
    """Whether the log tells that one host has all ranks of the job."""
    processes = logs.processes
    if several_hosts(logs) or not processes:
        return False
    return any(process.nnodes == 1 for process in processes) or 0 < max(
        process.nranks or 0 for process in processes
    ) <= len(processes)


def starting(process: LogProcess) -> bool:
    """Whether NCCL began in it, and no communicator, or not each, was complete when the log ended.

    Before 2.18.3 only the end of a start was told.
    """
    return process.began > process.completed or (process.bootstrap is not None and process.completed == 0)


def finished_start(logs: Logs) -> bool:
    """Whether every process that NCCL told of has come through its start."""
    return bool(logs.processes) and all(
        process.completed and process.completed >= process.began for process in logs.processes
    )


def starts_later(logs: Logs, event: LogEvent) -> bool:
    """Whether NCCL began after the line and came through: what the line tells did no harm."""
    done = [process for process in logs.processes if process.completed]
    return any(process.file != event.file or process.first_line > event.line for process in done)
