"""Bytes that interfaces and HCAs moved, and the interfaces behind the open connections of a process.

Source: proc(5), /proc/PID/fd and /proc/PID/net/tcp; /sys/class/infiniband/*/ports/*/counters; port_counters.py.
"""

from __future__ import annotations

import ipaddress
import os
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import psutil

from ncclcheck.probes.facts import Endpoint, Moved, Risen, Traffic, Unread
from ncclcheck.probes.job.usage import port_counters
from ncclcheck.probes.machine.access import Machine

_DEVICES = "/proc/net/dev"
_HCAS = "/sys/class/infiniband"
_WORD = 4  # bytes in one count of port_xmit_data
_MOST_SOCKETS = 8 * 2**20  # of /proc/PID/net/tcp: some 50,000 connections of the whole machine
_ESTABLISHED = "01"
Bytes = dict[str, tuple[int, int]]
_INTERFACE = re.compile(r"\s*(\S+):\s*(\d+)(?:\s+\d+){7}\s+(\d+)")


@dataclass(frozen=True)
class CounterReading:
    """The counters of a machine at one time: name -> bytes sent and received."""

    machine: Machine
    taken: float
    interfaces: Bytes | Unread
    hcas: Bytes | Unread
    counted: port_counters.Counted

    @classmethod
    def take(cls, machine: Machine) -> CounterReading:
        """Read all counters now."""
        return cls(machine, time.monotonic(), _interfaces(machine), _hcas(machine), port_counters.read(machine))

    def until_now(self, node: str) -> Traffic:
        """How far they have risen since. What went backwards was reset, and is left out."""
        now = CounterReading.take(self.machine)
        return Traffic(
            node=node,
            seconds=round(now.taken - self.taken, 3),
            interfaces=_risen(self.interfaces, now.interfaces),
            hcas=_risen(self.hcas, now.hcas),
            counted=sorted(self.counted.keys() & now.counted.keys()),
            risen=list(_counters(self.counted, now.counted)),
        )


def _interfaces(machine: Machine) -> Bytes | Unread:
    text = machine.read(_DEVICES)
    if isinstance(text, Unread):
        return text
    matches = (_INTERFACE.match(line) for line in text.splitlines())
    return {match[1]: (int(match[3]), int(match[2])) for match in matches if match}


def _hcas(machine: Machine) -> Bytes | Unread:
    names = machine.names(_HCAS)
    if isinstance(names, Unread):
        return names
    counted = dict(_ports(machine, names))
    return counted or Unread("absent", "no HCA has counters of its data")


def _ports(machine: Machine, names: list[str]) -> Iterator[tuple[str, tuple[int, int]]]:
    for name in names:
        ports = machine.names(f"{_HCAS}/{name}/ports")
        for port in [] if isinstance(ports, Unread) else ports:
            folder = f"{_HCAS}/{name}/ports/{port}/counters"
            sent, received = machine.number(f"{folder}/port_xmit_data"), machine.number(f"{folder}/port_rcv_data")
            if not isinstance(sent, Unread) and not isinstance(received, Unread):
                yield f"{name}:{port}", (_WORD * sent, _WORD * received)


def _risen(before: Bytes | Unread, now: Bytes | Unread) -> list[Moved] | Unread:
    if isinstance(before, Unread):
        return before
    if isinstance(now, Unread):
        return now
    risen = [
        Moved(name=name, sent=now[name][0] - sent, received=now[name][1] - received)
        for name, (sent, received) in before.items()
        if name in now
    ]
    return [moved for moved in risen if moved.sent >= 0 and moved.received >= 0]


def _counters(before: port_counters.Counted, now: port_counters.Counted) -> Iterator[Risen]:
    """What rose; a counter that went backwards was reset."""
    for name in sorted(before.keys() & now.keys()):
        rises = {counter: value - before[name].get(counter, value) for counter, value in now[name].items()}
        if risen := {counter: rise for counter, rise in rises.items() if rise > 0}:
            yield Risen(name=name, counters=risen)


def connections(pid: int, not_ports: Collection[int]) -> Counter[tuple[Endpoint, bool]] | Unread:
    """Established TCP connections of a process: the endpoint here, and whether the peer is on this machine.

    not_ports: of the store over which ranks meet; what goes there is no traffic of the job.
    """
    inodes = _inodes(pid)
    if isinstance(inodes, Unread):
        return inodes
    own = _own_addresses()
    counter: Counter[tuple[Endpoint, bool]] = Counter()
    for local, remote, inode in _established(pid):
        if inode in inodes and not {local[1], remote[1]} & set(not_ports):
            endpoint = Endpoint(interface=_interface_of(local[0], own), address=local[0])
            counter[endpoint, remote[0] in own or _is_loopback(remote[0])] += 1
    return counter


def _inodes(pid: int) -> set[str] | Unread:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        return Unread("denied", f"the open files of process {pid} may not be read by this user")
    except OSError:
        return Unread("absent", f"process {pid} is gone")
    links = (_link(f"/proc/{pid}/fd/{name}") for name in names)
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _established(pid: int) -> Iterator[tuple[tuple[str, int], tuple[str, int], str]]:
    """Local and remote address and port, and inode, of every connection in the process's network namespace."""
    for name in ("tcp", "tcp6"):
        text = Machine().read(f"/proc/{pid}/net/{name}", _MOST_SOCKETS)
        for line in [] if isinstance(text, Unread) else text.splitlines()[1:]:
            parts = line.split()
            if len(parts) > 9 and parts[3] == _ESTABLISHED:
                yield _address(parts[1]), _address(parts[2]), parts[9]


def _address(text: str) -> tuple[str, int]:
    """`0100007F:1F90` -> 127.0.0.1, 8080: words of the machine's own byte order (little endian)."""
    host, _, port = text.partition(":")
    data = b"".join(bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8))
    address = ipaddress.ip_address(data)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), int(port, 16)


def _own_addresses() -> dict[str, str]:
    """Address -> interface, of this machine."""
    listed = psutil.net_if_addrs().items()
    return {address.address.partition("%")[0]: name for name, addresses in listed for address in addresses}


def _interface_of(address: str, own: dict[str, str]) -> str:
    return own.get(address) or ("lo" if _is_loopback(address) else "")


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
