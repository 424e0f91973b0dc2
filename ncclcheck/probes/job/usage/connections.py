"""How the TCP connections of this host fared while a job ran: what they sent again, and went unanswered.

A connection that is closed takes its numbers along, so they are looked at again and again. What a busy host does
to itself is taken out: what was sent again needlessly the other side reports (DSACK, RFC 2883); that is no loss.
Source: sock_diag(7), tcp(7); linux/inet_diag.h, linux/tcp.h.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from ncclcheck.probes.facts import Sent
from ncclcheck.probes.machine.net.netlink_messages import (
    DONE,
    ERROR,
    HEADER,
    REQUEST_DUMP,
    attributes_of,
    messages,
)

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY
_ESTABLISHED = 1 << 1  # of TCP's states
_WANT_INFO, _INFO = 1 << 1, 2  # INET_DIAG_INFO
# struct inet_diag_msg: family, state, timer, retransmits; ports; addresses; interface; cookie; five numbers more.
_MESSAGE = struct.Struct("=BBBB4s16s16sI8s20s")
_REPEATS = 1  # the timer that waits for an acknowledgement, and not that for room at the other side
# Of struct tcp_info: tcpi_total_retrans, tcpi_segs_out, tcpi_dsack_dups (Linux 4.19; 0 before it).
_RETRANSMITS, _SEGMENTS, _NEEDLESS = 100, 136, 216
_WITHIN_S = 0.2  # for each family, what comes later is left out; the kernel answers from memory: chosen
_MOST = 4096  # connections that are kept in mind: chosen, a rank of NCCL has some hundred
_MOST_TOLD = 64  # pairs of addresses in one record, those that fared worst: chosen
_GAP_S = 1.0  # between two looks, beyond which what happened in between is not known: chosen


@dataclass
class _SeenConnection:
    """One connection, as it was first and last seen. since: of what went unanswered at the last look."""

    ends: tuple[str, str]
    first: tuple[int, int, int]
    last: tuple[int, int, int]
    unanswered_s: float = 0.0
    outages: int = 0
    silent: bool = False

    @property
    def lost(self) -> int:
        """Segments that were sent again and were needed."""
        again, needless = (self.last[place] - self.first[place] for place in (1, 2))
        return max(0, again - needless)


class ConnectionWatch:
    """What is known of all connections between this host and others, since its making."""

    def __init__(self, dump: Callable[[], bytes] | None = None) -> None:
        self._dump = dump or dumped
        self._known: dict[bytes, _SeenConnection] = {}
        self._looked = 0.0
        self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Read them all once. Never raises; where the kernel tells nothing there is nothing to tell."""
        passed = min(now - self._looked, _GAP_S) if self._looked else 0.0
        self._looked = now
        with suppress(OSError, struct.error, ValueError):
            for cookie, ends, counted, repeats in parsed(self._dump()):
                self._take(cookie, ends, counted, passed, repeats=repeats)

    def _take(
        self, cookie: bytes, ends: tuple[str, str], counted: tuple[int, int, int], passed: float, *, repeats: bool
    ) -> None:
        connection = self._known.get(cookie)
        if connection is None:
            if len(self._known) < _MOST:
                self._known[cookie] = _SeenConnection(ends, counted, counted, silent=repeats)
            return
        connection.last = counted
        if repeats:
            connection.unanswered_s += passed
            connection.outages += not connection.silent
        connection.silent = repeats

    def sent(self) -> list[Sent]:
        """By the addresses of both ends, the worst first."""
        by_ends: dict[tuple[str, str], Sent] = {}
        for connection in [*self._known.values()]:  # the thread that looks may add one
            known = by_ends.get(connection.ends) or Sent(source=connection.ends[0], target=connection.ends[1])
            silent = connection.lost > 0
            by_ends[connection.ends] = Sent(
                source=known.source,
                target=known.target,
                segments=known.segments + max(0, connection.last[0] - connection.first[0]),
                again=known.again + connection.lost,
                unanswered_s=round(max(known.unanswered_s, connection.unanswered_s if silent else 0.0), 3),
                outages=max(known.outages, connection.outages if silent else 0),
            )
        worst = sorted(by_ends.values(), key=lambda sent: (-sent.unanswered_s, -sent.again, -sent.segments))
        return [sent for sent in worst if sent.segments or sent.again][:_MOST_TOLD]


def dumped() -> bytes:
    """The kernel's list of the established connections of this network namespace. Raises OSError."""
    data = b""
    for family in (socket.AF_INET, socket.AF_INET6):
        body = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, _WANT_INFO, 0, _ESTABLISHED)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as sock:
            sock.settimeout(_WITHIN_S)
            sock.send(HEADER.pack(HEADER.size + len(body), _BY_FAMILY, REQUEST_DUMP, 1, 0) + body)
            end = time.monotonic() + _WITHIN_S
            while time.monotonic() < end:
                more = sock.recv(2**17)
                data += more
                if any(kind in (DONE, ERROR) for kind, _ in messages(more)):
                    break
    return data


def parsed(data: bytes) -> Iterator[tuple[bytes, tuple[str, str], tuple[int, int, int], bool]]:
    """Cookie, addresses, counters and whether it repeats what nobody acknowledges; of those to other hosts."""
    for kind, message in messages(data):
        if kind != _BY_FAMILY or len(message) < _MESSAGE.size:
            continue
        family, _, timer, repeated, _, source, target, _, cookie, _ = _MESSAGE.unpack_from(message)
        ends = _address(family, source), _address(family, target)
        if ends[0] == ends[1] or ipaddress.ip_address(ends[1]).is_loopback:
            continue
        info = attributes_of(message[_MESSAGE.size :]).get(_INFO, b"")
        if len(info) >= _SEGMENTS + 4:
            counted = tuple(_word(info, place) for place in (_SEGMENTS, _RETRANSMITS, _NEEDLESS))
            yield cookie, ends, (counted[0], counted[1], counted[2]), timer == _REPEATS and repeated > 0


def _address(family: int, packed: bytes) -> str:
    if family == socket.AF_INET:
        return str(ipaddress.ip_address(packed[:4]))
    address = ipaddress.IPv6Address(packed)
    return str(address.ipv4_mapped or address)


def _word(info: bytes, offset: int) -> int:
    return int(struct.unpack_from("=I", info, offset)[0]) if len(info) >= offset + 4 else 0
