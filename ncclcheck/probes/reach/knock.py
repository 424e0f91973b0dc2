"""Whether the host of a silent node still answers: its kernel does, whatever its processes do."""

from __future__ import annotations

import errno
import ipaddress
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from ncclcheck.probes.facts import Door, KeptBy, Knock
from ncclcheck.probes.machine.net import unsent
from ncclcheck.probes.reach import protocol

MOST_S = 3.0  # the kernel sends a SYN at 0 and 1 s and, before the end, at 3 s: one lost packet is no silence
_SSH = 22  # TCP port of sshd: open or refusing, it shows that the host is up
_NOWHERE: KeptBy = ""


def knock(doors: Sequence[Door], by: str, seconds: float) -> list[Knock]:
    """Try to connect to ports that were open before: a refusal is an answer. Never raises; keeps the limit."""
    knocks: dict[str, Knock] = {}
    end = time.monotonic() + min(MOST_S, seconds)

    def knock_at(door: Door) -> None:
        knocks[door.name] = _knock(door, by, max(0.1, end - time.monotonic()))

    threads = [threading.Thread(target=knock_at, args=(door,), daemon=True, name="knock") for door in doors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end + 0.2 - time.monotonic()))
    return [knocks[door.name] for door in doors if door.name in knocks]


def _knock(door: Door, by: str, seconds: float) -> Knock:
    answered, detail, alive, where = False, "no answer", "", _NOWHERE
    try:
        ipaddress.ip_address(door.address.partition("%")[0])  # no name server is asked
        with (
            _OtherAnswers(door.address, door.tcp_port) as others,
            _socket(door.address, socket.SOCK_STREAM) as sock,
        ):
            try:
                sock.settimeout(seconds)
                sock.connect(protocol.place(door.address, door.tcp_port))
                answered, detail = True, "accepted"
            except ConnectionRefusedError:
                answered, detail = True, "refused, as a closed port does"
            except TimeoutError:
                where, alive = unsent.of_unanswered(sock), others.answer()
            except OSError as error:
                detail, where = (
                    os.strerror(error.errno) if error.errno else str(error),
                    unsent.of_error(error, door.address),
                )
                alive = others.answer()
    except (OSError, ValueError) as error:
        detail = str(error)
    return Knock(
        of=door.name, by=by, address=door.address, answered=answered, detail=detail, alive=alive, kept=where
    )


def _socket(address: str, kind: socket.SocketKind) -> socket.socket:
    return socket.socket(protocol.family_of(address), kind)


class _OtherAnswers:
    """What else of the host may answer: sshd's port, and ICMP for a closed port of UDP; read later."""

    def __init__(self, address: str, closed: int) -> None:
        self._tcp, self._udp = _socket(address, socket.SOCK_STREAM), _socket(address, socket.SOCK_DGRAM)
        for sock in (self._tcp, self._udp):
            sock.setblocking(False)
        self._tcp.connect_ex(protocol.place(address, _SSH))
        with suppress(OSError):
            self._udp.connect(protocol.place(address, closed))
            self._udp.send(b"")

    def __enter__(self) -> _OtherAnswers:
        return self

    def __exit__(self, *_: object) -> None:
        self._tcp.close()
        self._udp.close()

    def answer(self) -> str:
        """`UDP` or `TCP`, by which the host has answered by now; empty where it has not."""
        if self._udp.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED:
            return "UDP"
        poll = select.poll()
        poll.register(self._tcp.fileno(), select.POLLOUT)
        error = self._tcp.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if poll.poll(0) else errno.ETIMEDOUT
        return f"TCP port {_SSH}" if error in (0, errno.ECONNREFUSED) else ""
