"""Several TCP connections at once, as a job opens them: a firewall that limits new ones lets a single one pass."""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from contextlib import ExitStack

from ncclcheck.probes.facts import Door, Volley
from ncclcheck.probes.reach import protocol as p

# Seconds. The kernel asks again after 1 s (RFC 6298): what is open by then was answered at the first asking.
WITHIN_S = 0.8
_MOST = 8  # a limit with the usual burst of 5 (nft, iptables) shows
_TOGETHER = (
    64  # to one node from all its peers: half the backlog that a kernel of before 5.4 allows (somaxconn 128)
)
_RESET = struct.pack("ii", 1, 0)


def size(peers: int) -> int:
    """How many connections to open to each of so many peers."""
    return max(1, min(_MOST, _TOGETHER // max(1, peers)))


def fire(door: Door, count: int) -> Volley:
    """Open so many at once, and count those that are not open in time. Raises OSError.

    The kernel answers while a busy process sleeps, so a last look at the end sees them all.
    """
    with ExitStack() as stack:
        asked = [stack.enter_context(_asked(door)) for _ in range(count)]
        end, waiting = time.monotonic() + WITHIN_S, set(asked)
        while waiting and (left := end - time.monotonic()) > 0:
            waiting -= _open(waiting, left)
        waiting -= _open(waiting, 0.0) if waiting else set()
        return Volley(opened=count, late=len(waiting))


def _asked(door: Door) -> socket.socket:
    sock = socket.socket(p.family_of(door.address), socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # leaves no TIME_WAIT behind
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
