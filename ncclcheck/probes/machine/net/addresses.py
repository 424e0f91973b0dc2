"""What the kernel here says of an address: its interface, its counters, and whence it would send to a peer."""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

import psutil

from ncclcheck.probes.facts import Counters, Hop, KernelRoute, Neighbour, Unread, replace
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.net import netlink
from ncclcheck.probes.reach import protocol

_ANY_PORT = 9  # discard (RFC 863): nothing is sent by connect, and nobody minds an empty datagram
_ARP_S = 0.3  # a machine on the wire answers within a millisecond; the kernel asks again only after a second
_ANSWERED = ("reachable", "stale", "delay", "probe")
_COMPLETE, _PERMANENT = 0x2, 0x4  # ATF_COM and ATF_PERM, linux/if_arp.h


def interface_names() -> dict[str, str]:
    """The interface of every address here; the first one where several have it."""
    names: dict[str, str] = {}
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            names.setdefault(address.address.partition("%")[0], name)
    return names


def mtu_of(interface: str) -> int:
    """The MTU of an interface; 0 where it cannot be told."""
    stats = psutil.net_if_stats().get(interface.partition(":")[0])
    return stats.mtu if stats else 0


def source_to(address: str) -> str | Unread:
    """The address from which the kernel would send to a peer, by its routes; nothing is sent."""
    try:
        with socket.socket(protocol.family_of(address), socket.SOCK_DGRAM) as sock:
            sock.connect(protocol.place(address, _ANY_PORT))
            return str(sock.getsockname()[0]).partition("%")[0]
    except OSError as error:
        return Unread("absent", f"no route to {address}: {error.strerror or error}")


def way_to(address: str) -> KernelRoute | Unread:
    """How the kernel sends to a peer: interface, source, next hop and whether that answers.

    Nothing is sent, unless a gateway does not answer: then a packet goes to where another one may be.
    """
    source = source_to(address)
    try:
        way = netlink.way_to(address, "" if isinstance(source, Unread) else source)
        silent = [hop for hop in way.hops if hop.address != address and hop.state in ("failed", "incomplete")]
        return replace(way, routers=_routers(silent[0])) if silent else way
    except (OSError, ValueError) as error:
        return Unread("no_tool", f"rtnetlink: {error}")


def _routers(dead: Hop) -> list[str]:
    """Who answers on that wire at the first or the last address of its subnets (ARP or neighbour discovery)."""
    addresses = []
    for own_address in psutil.net_if_addrs().get(dead.interface, []):
        with suppress(ValueError):
            own = ipaddress.ip_interface(f"{own_address.address}/{own_address.netmask}")
            if own.version == ipaddress.ip_address(dead.address).version and own.network.num_addresses >= 4:
                ends = {own.network[1], own.network[-2]} - {own.ip, ipaddress.ip_address(dead.address)}
                addresses += [str(end) for end in sorted(ends, key=int)]
    for address in addresses:
        with suppress(OSError), socket.socket(protocol.family_of(address), socket.SOCK_DGRAM) as sock:
            sock.connect(protocol.place(address, _ANY_PORT))
            sock.send(b"")
    time.sleep(_ARP_S if addresses else 0.0)
    return [router for router in addresses if netlink.neighbour_state(dead.interface, router) in _ANSWERED]


def neighbours() -> dict[str, Neighbour] | Unread:
    """The IPv4 neighbours that the kernel knows a hardware address of."""
    text = Machine().read("/proc/net/arp")
    return text if isinstance(text, Unread) else parsed_neighbours(text)


def parsed_neighbours(text: str) -> dict[str, Neighbour]:
    """IP address, HW type, Flags, HW address, Mask, Device; without entries to which nobody has answered."""
    entries = {}
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) != 6 or not re.fullmatch("0x[0-9a-f]{1,8}", words[2]):
            continue
        flags = int(words[2], 16)
        if flags & _COMPLETE:
            entries[words[0]] = Neighbour(
                mac=words[3].lower(), interface=words[5], permanent=bool(flags & _PERMANENT)
            )
    return entries


def unanswered_on(addresses: Collection[str]) -> str:
    """The interface on which the kernel asked for one of these IPv4 addresses (ARP) and got no answer; else ""."""
    text = Machine().read("/proc/net/arp")
    return "" if isinstance(text, Unread) else parsed_unanswered(text, addresses)


def parsed_unanswered(text: str, addresses: Collection[str]) -> str:
    """The same from what the kernel lists: an entry without a hardware address is one that nobody answered."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return next((row[5] for row in rows if len(row) == 6 and row[0] in addresses and row[2] == "0x0"), "")


def waited_for_core() -> float:
    """Seconds in which this thread was ready to run and no core was free; 0 where the kernel does not count it."""
    text = Machine().read("/proc/thread-self/schedstat")
    words = [] if isinstance(text, Unread) else text.split()
    return int(words[1]) / 1e9 if len(words) == 3 and words[1].isdecimal() else 0.0


def counters(interface: str) -> Counters | Unread:
    """All packets, errors and drops of an interface since it was made, both directions."""
    text = Machine().read("/proc/net/dev")
    if isinstance(text, Unread):
        return text
    for line in text.splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface.partition(":")[0]:
            return _counted(numbers.split())
    return Unread("absent", f"/proc/net/dev has no {interface}")


def _counted(words: list[str]) -> Counters | Unread:
    """Received: bytes packets errs drop fifo frame compressed multicast; sent: bytes packets errs drop ..."""
    try:
        n = [int(word) for word in words]
        return Counters(
            packets=n[1] + n[9],
            errors=n[2] + n[10],
            drops=n[3] + n[11],
            bytes_in=n[0],
            bytes_out=n[8],
            seconds=time.monotonic(),
        )
    except (ValueError, IndexError):
        return Unread("broken", "/proc/net/dev is not what proc(5) says")


def udp_overflows() -> int:
    """UDP packets dropped here for want of room, over IPv4 and IPv6; 0 where it is not told."""
    machine = Machine()
    first, second = machine.read("/proc/net/snmp"), machine.read("/proc/net/snmp6")
    counted = {} if isinstance(first, Unread) else _columns(first)
    counted |= {} if isinstance(second, Unread) else _pairs(second)
    return _number(counted, "RcvbufErrors") + _number(counted, "Udp6RcvbufErrors")


def _columns(text: str) -> dict[str, str]:
    """/proc/net/snmp has a line of names and a line of numbers for each protocol."""
    udp = [line.split() for line in text.splitlines() if line.startswith("Udp:")]
    return dict(zip(*udp, strict=False)) if len(udp) == 2 else {}


def _pairs(text: str) -> dict[str, str]:
    lines = (line.split() for line in text.splitlines())
    return {words[0]: words[1] for words in lines if len(words) == 2}


def _number(counted: Mapping[str, str], name: str) -> int:
    text = counted.get(name, "0")
    return int(text) if text.isdecimal() else 0


def risen(before: Counters | Unread, after: Counters | Unread) -> Counters | Unread:
    """By how much each counter rose between two readings, 0 where it was reset; an Unread where one is."""
    if isinstance(before, Unread) or isinstance(after, Unread):
        return before if isinstance(before, Unread) else after
    return Counters(**{name: max(0, getattr(after, name) - getattr(before, name))
                       for name in Counters.__struct_fields__})  # fmt: skip
