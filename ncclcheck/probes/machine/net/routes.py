"""Routes from /proc/net/route and /proc/net/ipv6_route: default, connected and static ones."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Callable, Iterator

from ncclcheck.probes.facts import Route, Unread
from ncclcheck.probes.machine.access import Machine

_Parser = Callable[[list[str]], Route | None]

_UP, _GATEWAY, _REJECT = 0x1, 0x2, 0x200  # RTF_UP, RTF_GATEWAY, RTF_REJECT. Source: linux/route.h
_NO_ROUTE_V6 = _REJECT | 0x00100000 | 0x01000000 | 0x80000000  # anycast, cached, local
_NOISE_V6 = (ipaddress.IPv6Network("fe80::/10"), ipaddress.IPv6Network("ff00::/8"))


def routes(machine: Machine) -> list[Route] | Unread:
    """IPv4 first, each in the kernel's order. A machine without IPv6 has no second file."""
    first, second = machine.read("/proc/net/route"), machine.read("/proc/net/ipv6_route")
    if isinstance(first, Unread) and isinstance(second, Unread):
        return first
    lines = "" if isinstance(first, Unread) else first
    lines_v6 = "" if isinstance(second, Unread) else second
    return [*_parsed(lines, _route_v4), *_parsed(lines_v6, _route_v6)]


def _parsed(text: str, parse: _Parser) -> Iterator[Route]:
    """A line that nobody understands (the header, one cut at the end) is none of the routes."""
    for line in text.splitlines():
        try:
            route = parse(line.split())
        except (ValueError, IndexError, OverflowError):
            continue
        if route is not None:
            yield route


def _route_v4(words: list[str]) -> Route | None:
    """Iface Destination Gateway Flags RefCnt Use Metric Mask: hexadecimal in the machine's byte order."""
    flags = int(words[3], 16)
    if not flags & _UP or flags & _REJECT or words[0] == "*":  # a star: blackhole or throw
        return None
    prefix = int(words[7], 16).bit_count()
    return Route(
        destination=str(ipaddress.IPv4Network((_v4(words[1]), prefix), strict=False)),
        gateway=str(_v4(words[2])) if flags & _GATEWAY else "",
        interface=words[0],
        metric=_metric(int(words[6])),
    )


def _v4(text: str) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int(text, 16).to_bytes(4, sys.byteorder))


def _route_v6(words: list[str]) -> Route | None:
    """Destination, its prefix, source, its prefix, next hop, metric, two counters, flags, interface."""
    flags = int(words[8], 16)
    destination = ipaddress.IPv6Network((int(words[0], 16), int(words[1], 16)), strict=False)
    noise = any(destination.subnet_of(net) for net in _NOISE_V6 if destination.prefixlen >= net.prefixlen)
    if not flags & _UP or flags & _NO_ROUTE_V6 or noise or words[9] == "lo":
        return None
    return Route(
        destination=str(destination),
        gateway=str(ipaddress.IPv6Address(int(words[4], 16))) if flags & _GATEWAY else "",
        interface=words[9],
        metric=_metric(int(words[5], 16)),
    )


def _metric(number: int) -> int:
    if not 0 <= number < 2**32:
        raise ValueError("not a metric")
    return number
