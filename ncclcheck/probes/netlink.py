"""What the kernel lists to anybody by rtnetlink(7): policy rules, routes that refuse, and what shapes cards."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Iterator

from ncclcheck.probes.facts import PolicyRule, RefusingRoute, RouteKind, Shaper

_WITHIN_S = 1.0
_MOST = 512  # entries that are kept of a listing: a router's tables are none of a node's
_MOST_BYTES = 16 * 2**20  # read of one listing
_REQUEST_DUMP = 0x1 | 0x300
_ERROR, _DONE = 2, 3
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_NEW_ROUTE, _GET_ROUTE, _NEW_RULE, _GET_RULE, _NEW_QDISC, _GET_QDISC = 24, 26, 32, 34, 36, 38
_KINDS: dict[int, RouteKind] = {6: "blackhole", 7: "unreachable", 8: "prohibit", 9: "throw"}
_TABLES = {253: "default", 254: "main", 255: "local"}
_INVERT = 0x2
# Attributes: linux/fib_rules.h, linux/rtnetlink.h, linux/pkt_sched.h.
_FRA_DST, _FRA_SRC, _FRA_IIF, _FRA_GOTO, _FRA_PRIORITY = 1, 2, 3, 4, 6
_FRA_MARK, _FRA_TABLE, _FRA_MASK, _FRA_OIF, _FRA_UIDS, _FRA_PROTOCOL = 10, 15, 16, 17, 20, 22
_FRA_SPORTS, _FRA_DPORTS = 23, 24
_RTA_DST, _RTA_PRIORITY, _RTA_TABLE = 1, 6, 15
_TCA_KIND, _TCA_OPTIONS = 1, 2
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp"}
# Where the rate (bytes a second) stands in the options of a qdisc: the attribute with its parameters, and whether
# a 64-bit rate of another attribute takes its place. struct tc_tbf_qopt begins with struct tc_ratespec.
_RATES = {"tbf": (1, 4), "netem": (6, 8)}

Attributes = dict[int, bytes]


def rules() -> list[PolicyRule]:
    """All policy rules but those that every machine has (local, main, default). Raises OSError."""
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for body, attributes in _dump(_GET_RULE, _NEW_RULE, family):
            if rule := _rule(family, body, attributes):
                found.append(rule)
    return found[:_MOST]


def refusing_routes() -> list[RefusingRoute]:
    """Routes of all tables by which nothing is sent. Raises OSError."""
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for body, attributes in _dump(_GET_ROUTE, _NEW_ROUTE, family):
            kind = _KINDS.get(body[7])
            if kind:
                table = _number(attributes, _RTA_TABLE, body[4])
                found.append(
                    RefusingRoute(
                        kind=kind,
                        destination=_prefix(family, attributes.get(_RTA_DST), body[1]),
                        table=_TABLES.get(table, str(table)),
                        metric=_number(attributes, _RTA_PRIORITY, 0),
                    )
                )
    return found[:_MOST]


def shapers() -> list[Shaper]:
    """The root queueing disciplines of cards that limit or spoil what is sent. Raises OSError."""
    names = dict(socket.if_nameindex())
    found = []
    for body, attributes in _dump(_GET_QDISC, _NEW_QDISC, socket.AF_UNSPEC):
        (index,) = struct.unpack_from("=i", body, 4)
        kind = attributes.get(_TCA_KIND, b"").rstrip(b"\0").decode("ascii", "replace")
        parent = struct.unpack_from("=I", body, 12)[0]
        if kind in ("tbf", "netem", "htb", "hfsc", "cbq", "police") and index in names:
            rate = _rate(kind, attributes.get(_TCA_OPTIONS, b""))
            found.append(Shaper(interface=names[index], kind=kind, root=parent == 0xFFFFFFFF, bytes_per_s=rate))
    return found[:_MOST]


def _rate(kind: str, options: bytes) -> int:
    """Bytes a second; 0 where this discipline has none of its own."""
    if kind not in _RATES:
        return 0
    plain, wide = _RATES[kind]
    inside = _attributes(options[24:] if kind == "netem" else options)
    if len(inside.get(wide, b"")) >= 8:
        return int(struct.unpack_from("=Q", inside[wide])[0])
    data = inside.get(plain, b"")
    offset = 0 if kind == "netem" else 8
    return int(struct.unpack_from("=I", data, offset)[0]) if len(data) >= offset + 4 else 0


def _rule(family: int, body: bytes, attributes: Attributes) -> PolicyRule | None:
    table, action = _number(attributes, _FRA_TABLE, body[4]), body[7]
    priority = _number(attributes, _FRA_PRIORITY, 0)
    to, source = attributes.get(_FRA_DST), attributes.get(_FRA_SRC)
    words = ["not"] * bool(struct.unpack_from("=I", body, 8)[0] & _INVERT)
    words += ["from", _prefix(family, source, body[2]) if source else "all"]
    words += ["to", _prefix(family, to, body[1])] if to else []
    plain = len(words) == 2
    words += _selectors(attributes)
    name = _TABLES.get(table, str(table))
    if plain and len(words) == 2 and name in ("local", "main", "default") and action == 1:
        return None
    does: str = _KINDS.get(action, f"lookup {name}")
    if action == 2:
        does = f"goto {_number(attributes, _FRA_GOTO, 0)}"
    return PolicyRule(
        version=4 if family == socket.AF_INET else 6,
        priority=priority,
        selector=" ".join(words),
        action=does,
        destination=_prefix(family, to, body[1]) if to else "",
    )


def _selectors(attributes: Attributes) -> list[str]:
    """What else a rule asks for, in the words of ip-rule(8)."""
    words: list[str] = []
    for number, name in ((_FRA_IIF, "iif"), (_FRA_OIF, "oif")):
        if number in attributes:
            words += [name, attributes[number].rstrip(b"\0").decode("ascii", "backslashreplace")]
    if mark := _number(attributes, _FRA_MARK, 0):
        words += ["fwmark", f"{mark:#x}/{_number(attributes, _FRA_MASK, 0xFFFFFFFF):#x}"]
    if len(attributes.get(_FRA_UIDS, b"")) >= 8:
        words += ["uidrange", "{}-{}".format(*struct.unpack_from("=II", attributes[_FRA_UIDS]))]
    if attributes.get(_FRA_PROTOCOL):
        number = attributes[_FRA_PROTOCOL][0]
        words += ["ipproto", _PROTOCOLS.get(number, str(number))]
    for number, name in ((_FRA_SPORTS, "sport"), (_FRA_DPORTS, "dport")):
        if len(attributes.get(number, b"")) >= 4:
            first, last = struct.unpack_from("=HH", attributes[number])
            words += [name, f"{first}-{last}" if first != last else str(first)]
    return words


def _prefix(family: int, address: bytes | None, length: int) -> str:
    """An address with its prefix length; nothing is all of the family."""
    size = 4 if family == socket.AF_INET else 16
    if address is None or len(address) != size:
        return "0.0.0.0/0" if size == 4 else "::/0"
    return f"{ipaddress.ip_address(address)}/{length}"


def _number(attributes: Attributes, name: int, otherwise: int) -> int:
    data = attributes.get(name, b"")
    return int(struct.unpack_from("=I", data)[0]) if len(data) >= 4 else otherwise


def _dump(ask: int, answer: int, family: int) -> Iterator[tuple[bytes, Attributes]]:
    """Every entry of a listing: its fixed part (12 bytes; a qdisc's has 20) and its attributes. Raises OSError."""
    fixed = 20 if ask == _GET_QDISC else 12
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.settimeout(_WITHIN_S)
        body = struct.pack("=B", family).ljust(fixed, b"\0")
        sock.send(_HEADER.pack(_HEADER.size + fixed, ask, _REQUEST_DUMP, 1, 0) + body)
        end, read = time.monotonic() + _WITHIN_S, 0
        while time.monotonic() < end and read < _MOST_BYTES:
            data = sock.recv(2**17)
            read += len(data)
            for kind, message in _messages(data):
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", message)[0] if len(message) >= 4 else errno.EPROTO
                    raise OSError(code, os.strerror(code))
                if kind == answer and len(message) >= fixed:
                    yield message[:fixed], _attributes(message[fixed:])
    raise TimeoutError(errno.ETIMEDOUT, "rtnetlink gave no end")


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        if length < _HEADER.size:
            return
        yield kind, data[_HEADER.size : length]
        data = data[_aligned(length) :]


def _attributes(data: bytes) -> Attributes:
    found: Attributes = {}
    while len(data) >= _ATTRIBUTE.size:
        length, name = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            break
        found[name & 0x3FFF] = data[_ATTRIBUTE.size : length]
        data = data[_aligned(length) :]
    return found


def _aligned(length: int) -> int:
    return (length + 3) & ~3
