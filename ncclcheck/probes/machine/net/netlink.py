"""What the kernel tells anybody by rtnetlink(7): policy rules, refusing routes, what shapes cards, ways."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Iterator
from typing import Literal

from ncclcheck.probes.facts import Hop, HopState, KernelRoute, PolicyRule, RefusingRoute, RouteKind, Shaper
from ncclcheck.probes.machine.net.netlink_messages import (
    ATTRIBUTE,
    DONE,
    ERROR,
    HEADER,
    REQUEST_DUMP,
    Attributes,
    aligned,
    attributes_of,
    messages,
)
from ncclcheck.probes.reach.protocol import family_of

_WITHIN_S = 1.0  # the kernel answers from memory: chosen
_MOST = 512  # entries that are kept of a listing: a router's tables are none of a node's
_MOST_BYTES = 16 * 2**20  # read of one listing
# RTM_NEWROUTE and so on. Source: linux/rtnetlink.h
_NEW_ROUTE, _GET_ROUTE, _NEW_RULE, _GET_RULE, _NEW_QDISC, _GET_QDISC = 24, 26, 32, 34, 36, 38
_NEW_NEIGHBOUR, _GET_NEIGHBOUR = 28, 30  # RTM_NEWNEIGH, RTM_GETNEIGH
_NEW_CLASS, _GET_CLASS, _NEW_FILTER, _GET_FILTER = 40, 42, 44, 46  # RTM_NEWTCLASS and so on
_OF_CARDS = (_GET_QDISC, _GET_CLASS, _GET_FILTER)
_KINDS: dict[int, RouteKind] = {6: "blackhole", 7: "unreachable", 8: "prohibit", 9: "throw"}
_WAYS: dict[int, Literal["unicast", "local", "broadcast", "blackhole", "unreachable", "prohibit", "throw"]] = {
    1: "unicast", 2: "local", 3: "broadcast", **_KINDS,
}  # fmt: skip
_STATES: dict[int, HopState] = {
    0x01: "incomplete", 0x02: "reachable", 0x04: "stale", 0x08: "delay", 0x10: "probe", 0x20: "failed",
    0x40: "noarp", 0x80: "permanent",
}  # fmt: skip
_TABLES = {253: "default", 254: "main", 255: "local"}
_INVERT = 0x2  # FIB_RULE_INVERT: `ip rule add not ...`
# Attributes: linux/fib_rules.h, linux/rtnetlink.h, linux/pkt_sched.h.
_FRA_DST, _FRA_SRC, _FRA_IIF, _FRA_GOTO, _FRA_PRIORITY = 1, 2, 3, 4, 6
_FRA_MARK, _FRA_TABLE, _FRA_MASK, _FRA_OIF, _FRA_UIDS, _FRA_PROTOCOL = 10, 15, 16, 17, 20, 22
_FRA_SPORTS, _FRA_DPORTS = 23, 24
_RTA_DST, _RTA_SRC, _RTA_PRIORITY, _RTA_TABLE = 1, 2, 6, 15
_RTA_OIF, _RTA_GATEWAY, _RTA_SOURCE, _RTA_MULTIPATH, _RTA_VIA = 4, 5, 7, 9, 18
_MATCHED = 0x3000  # RTM_F_FIB_MATCH, RTM_F_LOOKUP_TABLE: the route itself, not what comes of it, and its table
_NEXT_HOP = struct.Struct("=HBBi")  # struct rtnexthop: length, flags, weight, interface
_TCA_KIND, _TCA_OPTIONS = 1, 2  # linux/rtnetlink.h
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp"}
# Where the rate (bytes a second) stands in the options of a qdisc: the attribute with its parameters, and whether
# a 64-bit rate of another attribute takes its place. struct tc_tbf_qopt begins with struct tc_ratespec.
_RATES = {"tbf": (1, 4), "netem": (6, 8)}
_ROOT, _COMES_IN = 0xFFFFFFFF, 0xFFFFFFF2  # parents: of a root discipline, of the filters of what comes in
_HTB_PARAMETERS, _HTB_INIT, _HTB_CEIL64 = 1, 2, 7  # TCA_HTB_PARMS, TCA_HTB_INIT, TCA_HTB_CEIL64
# Where a filter keeps a policer that is no action: TCA_U32_POLICE, TCA_BASIC_POLICE, TCA_FW_POLICE.
_POLICERS = {"u32": 6, "basic": 4, "fw": 2}
_POLICE_TBF, _POLICE_RATE64 = 1, 8  # TCA_POLICE_TBF, TCA_POLICE_RATE64. Source: linux/pkt_cls.h
_MOST_NESTED = 4  # filter, its actions, one of them, that one's options

_MOST_HOPS = 16  # of one multipath route: chosen, a node has up to 8 cards
# How the kernel says that there is no way: none at all, or that of a route that refuses (fib_props of Linux).
_NO_WAY: dict[int, Literal["", "blackhole", "unreachable", "prohibit"]] = {
    errno.ENETUNREACH: "", errno.EHOSTUNREACH: "unreachable", errno.EACCES: "prohibit", errno.EINVAL: "blackhole",
}  # fmt: skip


def rules() -> list[PolicyRule]:
    """All policy rules but those that every machine has (local, main, default). Raises OSError."""
    kept = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for body, attributes in _dump(_GET_RULE, _NEW_RULE, family):
            if rule := _rule(family, body, attributes):
                kept.append(rule)
    return kept[:_MOST]


def refusing_routes() -> list[RefusingRoute]:
    """Routes of all tables by which nothing is sent. Raises OSError."""
    routes = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for body, attributes in _dump(_GET_ROUTE, _NEW_ROUTE, family):
            kind = _KINDS.get(body[7])
            if kind:
                table = _number(attributes, _RTA_TABLE, body[4])
                routes.append(
                    RefusingRoute(
                        kind=kind,
                        destination=_prefix(family, attributes.get(_RTA_DST), body[1]),
                        table=_TABLES.get(table, str(table)),
                        metric=_number(attributes, _RTA_PRIORITY, 0),
                    )
                )
    return routes[:_MOST]


def shapers() -> list[Shaper]:
    """What limits or spoils what cards send, and policers of what they take in. Raises OSError."""
    names = dict(socket.if_nameindex())
    shaped = []
    for body, attributes in _dump(_GET_QDISC, _NEW_QDISC, socket.AF_UNSPEC):
        index, handle, parent = struct.unpack_from("=iII", body, 4)
        kind = attributes.get(_TCA_KIND, b"").rstrip(b"\0").decode("ascii", "replace")
        if index not in names:
            continue
        if kind in ("ingress", "clsact"):
            rates = _policed(index)
            shaped += [
                Shaper(interface=names[index], kind="police", root=False, bytes_per_s=r, way="in") for r in rates
            ]
        elif kind in ("tbf", "netem", "htb", "hfsc", "cbq", "police"):
            options = attributes.get(_TCA_OPTIONS, b"")
            rate = _htb(index, handle, options) if kind == "htb" else _rate(kind, options)
            shaped.append(Shaper(interface=names[index], kind=kind, root=parent == _ROOT, bytes_per_s=rate))
    return shaped[:_MOST]


def way_to(address: str, source: str = "") -> KernelRoute:
    """What the kernel answers to `ip route get ADDRESS from SOURCE`; nothing is sent. Raises OSError.

    source: a policy rule may ask for it; connect(2) looks for a route twice, and the second time with its source.
    """
    try:
        kind, taken = _route_to(address, source, 0)
    except OSError as error:
        if error.errno not in _NO_WAY:
            raise
        return KernelRoute(address=address, kind=_NO_WAY[error.errno], error=os.strerror(error.errno))
    try:
        body, matched = _route_to(address, source, _MATCHED)
    except OSError:  # before Linux 4.13
        body, matched = kind, taken
    family = family_of(address)
    names = dict(socket.if_nameindex())
    states = _states(family)
    hops = [
        Hop(interface=names.get(index, ""), address=gateway or address,
            state=states.get((index, gateway or address), ""))
        for index, gateway in _next_hops(matched) or [_next_hop(taken)]
    ]  # fmt: skip
    table = _number(matched, _RTA_TABLE, body[4])
    return KernelRoute(
        address=address,
        kind=_WAYS.get(kind[7], ""),
        source=_address(taken.get(_RTA_SOURCE)) or source,
        destination=_prefix(family, matched.get(_RTA_DST), body[1]),
        table=_TABLES.get(table, str(table)),
        metric=_number(matched, _RTA_PRIORITY, 0),
        hops=[hop for hop in hops if hop.interface][:_MOST_HOPS],
    )


def neighbour_state(interface: str, address: str) -> HopState:
    """Of the neighbour entry of an address. Raises OSError."""
    return _states(family_of(address)).get((socket.if_nametoindex(interface), address), "")


def _route_to(address: str, source: str, flags: int) -> tuple[bytes, Attributes]:
    """The route by which the kernel sends to an address. Raises OSError."""
    packed, own = (
        ipaddress.ip_address(text.partition("%")[0]).packed if text else b"" for text in (address, source)
    )
    body = struct.pack("=8BI", family_of(address), 8 * len(packed), 8 * len(own), 0, 0, 0, 0, 0, flags)
    for number, data in ((_RTA_DST, packed), (_RTA_SRC, own)):
        body += ATTRIBUTE.pack(ATTRIBUTE.size + len(data), number) + data if data else b""
    if scope := address.partition("%")[2]:
        body += ATTRIBUTE.pack(ATTRIBUTE.size + 4, _RTA_OIF) + struct.pack("=i", socket.if_nametoindex(scope))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.settimeout(_WITHIN_S)
        sock.send(HEADER.pack(HEADER.size + len(body), _GET_ROUTE, 0x1, 1, 0) + body)
        for kind, message in messages(sock.recv(2**16)):
            if kind == ERROR:
                code = -struct.unpack_from("=i", message)[0] if len(message) >= 4 else errno.EPROTO
                raise OSError(code, os.strerror(code))
            if kind == _NEW_ROUTE and len(message) >= 12:
                return message[:12], attributes_of(message[12:])
    raise OSError(errno.EPROTO, "rtnetlink gave no route")


def _next_hop(attributes: Attributes) -> tuple[int, str]:
    """Interface and gateway, which is empty where there is none; a gateway of the other family is in RTA_VIA."""
    via = attributes.get(_RTA_VIA, b"")[2:]
    return _number(attributes, _RTA_OIF, 0), _address(attributes.get(_RTA_GATEWAY) or via or None)


def _next_hops(attributes: Attributes) -> list[tuple[int, str]]:
    """Those of a route that has several."""
    data, hops = attributes.get(_RTA_MULTIPATH, b""), []
    while len(data) >= _NEXT_HOP.size:
        length, _, _, index = _NEXT_HOP.unpack_from(data)
        if length < _NEXT_HOP.size:
            break
        hops.append((index, _next_hop(attributes_of(data[_NEXT_HOP.size : length]))[1]))
        data = data[aligned(length) :]
    return hops


def _states(family: int) -> dict[tuple[int, str], HopState]:
    """The neighbour entries of this host: (interface, address) -> state."""
    states = {}
    for body, attributes in _dump(_GET_NEIGHBOUR, _NEW_NEIGHBOUR, family):
        index, state = struct.unpack_from("=iH", body, 4)
        if address := _address(attributes.get(1)):
            states[index, address] = _STATES.get(state, "")
    return states


def _address(packed: bytes | None) -> str:
    return str(ipaddress.ip_address(packed)) if packed is not None and len(packed) in (4, 16) else ""


def _htb(index: int, handle: int, options: bytes) -> int:
    """Bytes a second to which the class of what no filter sorts may rise; 0 where that has no class."""
    init = attributes_of(options).get(_HTB_INIT, b"")
    default = struct.unpack_from("=I", init, 8)[0] if len(init) >= 12 else 0
    classes = {}
    for body, attributes in _dump(_GET_CLASS, _NEW_CLASS, socket.AF_UNSPEC, index):
        own, parent = struct.unpack_from("=II", body, 8)
        classes[own] = parent, _ceiling(attributes_of(attributes.get(_TCA_OPTIONS, b"")))
    ceilings, at = [], handle & 0xFFFF0000 | default & 0xFFFF
    while at in classes:
        at, ceiling = classes.pop(at)
        ceilings.append(ceiling)
    return min(filter(None, ceilings), default=0) if default else 0


def _ceiling(parameters: Attributes) -> int:
    """struct tc_htb_opt: struct tc_ratespec of its rate, and of its ceiling."""
    return _wide_or(parameters, _HTB_CEIL64, _HTB_PARAMETERS, 20)


def _wide_or(parameters: Attributes, wide: int, plain: int, offset: int) -> int:
    """A rate of 64 bits, or where that is not told one of 32 bits, so many bytes into a structure."""
    if len(parameters.get(wide, b"")) >= 8:
        return int(struct.unpack_from("=Q", parameters[wide])[0])
    data = parameters.get(plain, b"")
    return int(struct.unpack_from("=I", data, offset)[0]) if len(data) >= offset + 4 else 0


def _policed(index: int) -> list[int]:
    """The rates of the policers of what a card takes in; none where the kernel lists no filters."""
    try:
        filters = [*_dump(_GET_FILTER, _NEW_FILTER, socket.AF_UNSPEC, index, _COMES_IN)]
    except OSError:
        return []
    rates = []
    for _, attributes in filters:
        kind = attributes.get(_TCA_KIND, b"").rstrip(b"\0").decode("ascii", "replace")
        rates.append(_police(attributes.get(_TCA_OPTIONS, b""), kind))
    return list(filter(None, rates))


def _police(options: bytes, kind: str = "", nested: int = 0) -> int:
    """Bytes a second of the first policer in the options of a filter; 0 where there is none. linux/pkt_cls.h."""
    inside = attributes_of(options)
    if inside.get(_TCA_KIND, b"") == b"police\0":
        return _policer(attributes_of(inside.get(_TCA_OPTIONS, b"")))
    if kind in _POLICERS and (rate := _policer(attributes_of(inside.get(_POLICERS[kind], b"")))):
        return rate
    deeper = inside.values() if nested < _MOST_NESTED else ()
    return next((rate for attributes in deeper if (rate := _police(attributes, "", nested + 1))), 0)


def _policer(parameters: Attributes) -> int:
    """struct tc_police: five numbers of 32 bits, then its struct tc_ratespec."""
    return _wide_or(parameters, _POLICE_RATE64, _POLICE_TBF, 28)


def _rate(kind: str, options: bytes) -> int:
    """Bytes a second; 0 where this discipline has none of its own."""
    if kind not in _RATES:
        return 0
    plain, wide = _RATES[kind]
    inside = attributes_of(options[24:] if kind == "netem" else options)
    return _wide_or(inside, wide, plain, 0 if kind == "netem" else 8)


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


def _dump(
    ask: int, answer: int, family: int, index: int = 0, parent: int = 0
) -> Iterator[tuple[bytes, Attributes]]:
    """Every entry of a listing: its fixed part (12 bytes; struct tcmsg has 20) and its attributes. Raises OSError.

    index, parent: of which card, and below what there, where classes and filters are listed.
    """
    fixed = 20 if ask in _OF_CARDS else 12
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.settimeout(_WITHIN_S)
        place = struct.pack("=B3xiII", family, index, 0, parent) if ask in _OF_CARDS else struct.pack("=B", family)
        body = place.ljust(fixed, b"\0")
        sock.send(HEADER.pack(HEADER.size + fixed, ask, REQUEST_DUMP, 1, 0) + body)
        end, read = time.monotonic() + _WITHIN_S, 0
        while time.monotonic() < end and read < _MOST_BYTES:
            data = sock.recv(2**17)
            read += len(data)
            for kind, message in messages(data):
                if kind == DONE:
                    return
                if kind == ERROR:
                    code = -struct.unpack_from("=i", message)[0] if len(message) >= 4 else errno.EPROTO
                    raise OSError(code, os.strerror(code))
                if kind == answer and len(message) >= fixed:
                    yield message[:fixed], attributes_of(message[fixed:])
    raise TimeoutError(errno.ETIMEDOUT, "rtnetlink gave no end")
