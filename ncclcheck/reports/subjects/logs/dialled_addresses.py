"""Connections that NCCL could not make, by what their address tells: whose it is, and whether it can be right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from shlex import quote
from typing import NamedTuple

from ncclcheck.probes.facts import Endpoint, LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.findings import Evidence, seen
from ncclcheck.reports.subjects.logs.logged import events_of, process_of
from ncclcheck.reports.subjects.logs.reported import ends
from ncclcheck.reports.text.words.fold import fold_names

_VIRTUAL = re.compile(
    r"(?:docker|br-|virbr|veth|cni|flannel|cali|tunl|tailscale|cilium|lxc|lxd|podman|nerdctl|weave|kube-|vxlan|"
    r"vmnet|vboxnet|dummy|tun|tap|wg|zt|ovs|nodelocaldns|vnet|usb|idrac)[\w.-]{0,32}"
)
_MADE_BY_DEFAULT = [ip_network("172.17.0.0/16"), ip_network("192.168.122.0/24")]  # docker0, virbr0
_REFUSED = "Connection refused"


class FailedDial(NamedTuple):
    """One connection that failed. kind: virtual, link-local, loopback, twin, refused or unreached."""

    event: LogEvent
    kind: str
    address: str


def dialled(logs: Logs, *kinds: str) -> list[FailedDial]:
    """The failed connections of these kinds, the first first."""
    return [connection for connection in _all(logs) if connection.kind in kinds]


def _all(logs: Logs) -> Iterator[FailedDial]:
    known = _owners(logs)
    for event in [*events_of(logs, "connect-failed", "connection-gone"), *_still_dialling(logs)]:
        address = (event.fields.get("peer") or event.fields.get("far", "")).partition("%")[0]
        yield FailedDial(event, _kind(event, address, process_of(logs, event), known.get(address, set())), address)


def _still_dialling(logs: Logs) -> list[LogEvent]:
    """The last tries of processes whose lines end with them in their start.

    A refusal only says that the peer does not listen yet; no other answer changes by waiting.
    """
    last = {(event.file, event.host, event.pid): event.line for event in logs.events}
    tries = [event for event in events_of(logs, "connect-retried")
             if event.line == last[event.file, event.host, event.pid]]  # fmt: skip
    hopeless = [event for event in tries if event.fields.get("error") not in (None, _REFUSED)]
    mine = [(event, process_of(logs, event)) for event in hopeless]
    return [event for event, process in mine if process is not None and process.began > process.completed]


def _owners(logs: Logs) -> dict[str, set[tuple[str, str]]]:
    """Address -> the hosts and interfaces that told it as their own."""
    hosts: dict[str, set[tuple[str, str]]] = {}
    for process in logs.processes:
        for end in ends(process):
            hosts.setdefault(end.address.partition("%")[0], set()).add((process.host, end.interface))
    return hosts


def _kind(event: LogEvent, address: str, here: LogProcess | None, owners: set[tuple[str, str]]) -> str:
    parsed = _parsed(address)
    if parsed is not None and parsed.is_loopback:
        return "loopback"
    if _leads_nowhere(address, here, owners):
        return "virtual"
    if parsed is not None and parsed.is_link_local:
        return "link-local"
    if event.fields.get("error") == _REFUSED or event.fields.get("spent") == "retries":
        return "refused"
    return "twin" if twins(here) else "unreached"


def _leads_nowhere(address: str, here: LogProcess | None, owners: set[tuple[str, str]]) -> bool:
    """An address of a bridge that every host has, or one that several hosts told as their own."""
    parsed = _parsed(address)
    if any(is_virtual(interface) for _, interface in owners) or len({host for host, _ in owners}) > 1:
        return True
    by_default = isinstance(parsed, IPv4Address) and any(parsed in network for network in _MADE_BY_DEFAULT)
    from_bridge = here is not None and here.bootstrap is not None and is_virtual(here.bootstrap.interface)
    return by_default or (from_bridge and not owners)


def of_no_network(address: str) -> str:
    """Of an address by which no other host is reached: `link-local`, or `virtual`, of a bridge of each host."""
    parsed = _parsed(address)
    if parsed is not None and parsed.is_link_local:
        return "link-local"
    return (
        "virtual"
        if isinstance(parsed, IPv4Address) and any(parsed in network for network in _MADE_BY_DEFAULT)
        else ""
    )


def of_a_bridge(address: str) -> bool:
    """Whether it is one that docker gives to containers behind its bridge."""
    parsed = _parsed(address)
    return isinstance(parsed, IPv4Address) and parsed in _MADE_BY_DEFAULT[0]


def in_bridge(process: LogProcess | None) -> bool:
    """Whether a process has such an address for its own: it runs in a container without the host's network."""
    own = process.bootstrap if process else None
    return own is not None and own.interface.startswith("eth") and of_a_bridge(own.address.partition("%")[0])


@cache
def is_virtual(interface: str) -> bool:
    """Whether an interface, by its name, is of containers, of virtual machines or a tunnel."""
    return _VIRTUAL.fullmatch(interface) is not None


def twins(process: LogProcess | None) -> list[Endpoint]:
    """Two real interfaces with addresses that differ in the last byte only: most likely one subnet."""
    known: dict[str, Endpoint] = {}
    for end in ends(process) if process else []:
        subnet, dot, _ = end.address.rpartition(".")
        if not dot or is_virtual(end.interface) or end.interface == "lo":
            continue
        other = known.setdefault(subnet, end)
        if other.interface != end.interface:
            return [other, end]
    return []


def targets(dials: Iterable[FailedDial]) -> str:
    """The addresses that were dialled, for a sentence."""
    named = list(dict.fromkeys(connection.address for connection in dials if connection.address))
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "") or "a peer"


def taken(processes: Iterable[LogProcess]) -> list[Evidence]:
    """What the first process of each host took for the bootstrap, as evidence."""
    speakers = {process.host: process for process in reversed([*processes]) if process.bootstrap}
    return [_of(process, process.bootstrap) for process in [*reversed(speakers.values())][:3] if process.bootstrap]


def listed(processes: Iterable[LogProcess]) -> list[Evidence]:
    """The virtual interfaces that the first process of each host sends data over, as evidence."""
    speakers = {process.host: process for process in reversed([*processes])}
    virtual = (
        (process, end)
        for process in reversed(speakers.values())
        for end in process.interfaces
        if is_virtual(end.interface)
    )
    return [_of(process, end) for process, end in [*virtual][:3]]


def _of(process: LogProcess, end: Endpoint) -> Evidence:
    return seen(
        f"{process.file}:{process.first_line}",
        f"{process.host}:{process.pid} uses {end.interface}:{end.address}",
    )


def names(hosts: Iterable[str]) -> str:
    """Hosts for a sentence."""
    return fold_names(sorted({host for host in hosts if host})) or "a node"


def reach(logs: Logs, *more: str) -> str:
    """The command that tries every node from every other."""
    hosts = sorted({host for host in (*(process.host for process in logs.processes), *more) if host})
    return f"ncclcheck env --hosts {quote(','.join(hosts)) if len(hosts) > 1 else 'NODE1,NODE2'}"


def _parsed(address: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(address)
    except ValueError:
        return None
