"""Several TCP connections at once, as a job opens them: a firewall that limits new ones lets a single one pass."""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from contextlib import ExitStack
from typing import Literal

from ncclcheck.probes.facts import Door, Volley
from ncclcheck.probes.reach import protocol as p

# Seconds. The kernel asks again after 1 s (RFC 6298): what is open by then was answered at the first asking.
WITHIN_S = 0.8
_MOST = 8  # a limit with the usual burst of 5 (nft, iptables) shows
_TOGETHER = (
    64  # to one node from all its peers: half the backlog that a kernel of before 5.4 allows (somaxconn 128)
)
_RESET = struct.pack("ii", 1, 0)
_Fate = Literal["open", "late", "refused"]


def size(peers: int) -> int:
    """How many connections to open to each of so many peers."""
    return max(1, min(_MOST, _TOGETHER // max(1, peers)))


def fire(door: Door, count: int) -> Volley:
    """Open so many at once, and count those that are refused, or not open in time. Raises OSError.

    Where some are and some are not, the same source ports are tried once more, the last one first: a switch or a
    router that spreads connections over several ways by their ports fails the same ones again, a limit or a loss
    others. The kernel answers while a busy process sleeps, so a last look at the end sees them all.
    """
    first = _round(door, [0] * count)
    late = [port for port, fate in first.items() if fate == "late"]
    refused = sum(fate == "refused" for fate in first.values())
    if not 0 < len(late) < len(first):
        return Volley(opened=len(first), late=len(late), refused=refused)
    again = _round(door, list(reversed(first)))
    same = sum(first[port] == fate for port, fate in again.items() if port in first)
    return Volley(opened=len(first), late=len(late), refused=refused, again=len(again), same=same)


def _round(door: Door, ports: list[int]) -> dict[int, _Fate]:
    """A connection from each of these ports, 0 for any: by its own port, how it fared in time."""
    with ExitStack() as stack:
        asked = [stack.enter_context(sock) for port in ports if (sock := _asked(door, port)) is not None]
        by_port = {int(sock.getsockname()[1]): sock for sock in asked}
        end, waiting = time.monotonic() + WITHIN_S, set(asked)
        while waiting and (left := end - time.monotonic()) > 0:
            waiting -= _open(waiting, left)
        waiting -= _open(waiting, 0.0) if waiting else set()
        return {port: "late" if sock in waiting else _fate(sock) for port, sock in by_port.items()}


def _fate(sock: socket.socket) -> _Fate:
    error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return "refused" if error in (errno.ECONNREFUSED, errno.ECONNRESET) else "open"


def _asked(door: Door, port: int) -> socket.socket | None:
    """A connection that is under way; None: the port is another's by now. Raises OSError."""
    family = p.family_of(door.address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # leaves no TIME_WAIT behind
    if port:
        try:
            sock.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
        except OSError:
            sock.close()
            return None
    error = sock.connect_ex(p.place(door.address, door.tcp_port))
    if error not in (0, errno.EINPROGRESS):
        sock.close()
        raise OSError(error, "connect")
    return sock


def _open(waiting: set[socket.socket], seconds: float) -> set[socket.socket]:
    """Those of which the kernel knows by now how it went."""
    poll = select.poll()
    by_number = {sock.fileno(): sock for sock in waiting}
    for number in by_number:
        poll.register(number, select.POLLOUT)
    return {by_number[number] for number, _ in poll.poll(1000 * seconds)}
