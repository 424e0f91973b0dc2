"""Ports all over the range from which the kernel gives them: a filter may close a part of it that no try meets.

A job's ranks listen on ports of that range by chance. The listener keeps one open in each eighth of it; peers only
connect, and the kernel answers for us.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ncclcheck.probes.facts import Door, Spread, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import system
from ncclcheck.probes.reach import protocol as p

MOST_PEERS = 32  # that try them: chosen, 256 connections of one node at once; a larger cluster is tried by a part
_PARTS = 8  # a range that a rule closes for a reason (a service, a scan) has thousands of ports
_TRIES = 4  # in each part, where a port is another's
_FIRST_S = 1.4  # the kernel asks again after 1 s (RFC 6298)
_RESET = struct.pack("ii", 1, 0)


def opened(address: str) -> list[socket.socket]:
    """A listener in each part of the range, as far as ports are free."""
    return list(_opened(address))


def _opened(address: str) -> Iterator[socket.socket]:
    given = system.port_range(Machine())
    if isinstance(given, Unread) or given.reserved:  # what is reserved is not given to a job
        return
    first, last = given.first, given.last
    step = (last - first + 1) // _PARTS
    dice = random.SystemRandom()
    for begin in range(first, last - step + 2, step) if step else ():
        for _ in range(_TRIES):
            sock = socket.socket(p.family_of(address), socket.SOCK_STREAM)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(p.place(address, begin + dice.randrange(step)))
                sock.listen(MOST_PEERS * 2)
            except OSError:
                sock.close()
                continue
            yield sock
            break


def tried(door: Door, end: float) -> Spread:
    """Which of its ports answer by `end` (time.monotonic); those that do not are asked once more."""
    begun = time.monotonic()
    left = _unanswered(door, door.spare, min(end, begun + _FIRST_S))
    shut = _unanswered(door, left, end) if left else []
    return Spread(open=[port for port in door.spare if port not in shut], shut=shut)


def _unanswered(door: Door, asked: Sequence[int], end: float) -> list[int]:
    """Ports that were refused or not answered in time, each asked by a connection of its own."""
    waiting: dict[int, tuple[int, socket.socket]] = {}
    shut: list[int] = []
    poll = select.poll()
    try:
        for port in asked:
            sock = socket.socket(p.family_of(door.address), socket.SOCK_STREAM)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # leaves no TIME_WAIT behind
            waiting[sock.fileno()] = port, sock
            with suppress(OSError):
                sock.connect(p.place(door.address, port))
            poll.register(sock.fileno(), select.POLLOUT)
        while waiting and (left := end - time.monotonic()) > 0:
            for number, _ in poll.poll(1000 * left):
                poll.unregister(number)
                port, sock = waiting.pop(number)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    shut.append(port)
                sock.close()
    finally:
        for _, sock in waiting.values():
            sock.close()
    return sorted([*shut, *(port for port, _ in waiting.values())])
