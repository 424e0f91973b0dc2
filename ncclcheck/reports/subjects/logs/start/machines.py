"""Which machines the processes of a log ran on, by what they say of their names and addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.subjects.logs.dialled_addresses import is_virtual

_DOCKER_BRIDGE = "172.17.0."
_CONTAINER = re.compile(r"[0-9a-f]{12}")


def of_the_job(logs: Logs) -> list[LogProcess]:
    """The processes of the largest communicator; all, where none was told of (a failed start before 2.18.3)."""
    largest = max((process.nranks or 0 for process in logs.processes), default=0)
    return [process for process in logs.processes if (process.nranks or 0) == largest]


def all_ranks(processes: Iterable[LogProcess]) -> bool:
    """Whether every rank of the communicator has said something."""
    processes = list(processes)
    return bool(processes) and {process.rank for process in processes} == set(range(processes[0].nranks or 0))


def address(process: LogProcess) -> str:
    """The address that no other machine has: none of a bridge or another virtual interface."""
    endpoint = process.bootstrap
    if (
        endpoint is None
        or endpoint.interface == "lo"
        or is_virtual(endpoint.interface)
        or endpoint.address.startswith(("127.", "::1", _DOCKER_BRIDGE))
    ):
        return ""
    return endpoint.address


def machines(processes: Iterable[LogProcess]) -> set[str]:
    """The machines of these processes, by the addresses of their hosts where these tell, else by name.

    Containers of one machine count as often as they have addresses.
    """
    processes = list(processes)
    known = {process.host: address(process) for process in processes if address(process)}
    return {address(process) or known.get(process.host, process.host) for process in processes}


def behind_one_bridge(processes: Iterable[LogProcess]) -> bool:
    """Whether all are on a bridge of docker, which carries nothing to another machine.

    That is its default network, or another one where docker has also named the hosts, by its containers.
    """
    processes = list(processes)
    addresses = {process.bootstrap.address if process.bootstrap else "" for process in processes}
    named = all(_CONTAINER.fullmatch(process.host) for process in processes)
    nets = {text.rpartition(".")[0] for text in addresses}
    default = all(text.startswith(_DOCKER_BRIDGE) for text in addresses)
    return len(addresses) > 1 and len(nets) == 1 and (default or named)


def different(processes: Iterable[LogProcess]) -> int:
    """How many machines there are for sure: by addresses, each with a name or an address of its own."""
    addresses = {address(process) for process in processes}
    return len(addresses - {""})


def on_two_machines(logs: Logs, event: LogEvent) -> bool:
    """Whether the two ranks that a line names (fields a and b) are on different machines."""
    by_rank = {process.rank: process for process in of_the_job(logs)}
    a, b = (by_rank.get(int(event.fields[name])) for name in ("a", "b"))
    return a is not None and b is not None and "" not in (address(a), address(b)) and address(a) != address(b)
