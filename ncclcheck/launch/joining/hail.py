"""Find node rank 0 on the wires here, where neither its name nor a route leads to it.

A question to all IPv6 hosts of a link (ff02::1, RFC 4291) needs no address, no name, no route and no router. Node
rank 0 answers whoever is on its own wire and names the run, with fewer bytes than came; that it is node rank 0 is
proved by the join that follows, if the run has a secret. Nothing is asked before the endpoint has failed for
seconds. Both sides hear link-local addresses alone, which no router passes on.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from ncclcheck.launch.given import is_loopback

_ALL_HOSTS = "ff02::1"
_ASKED, _ANSWERED = b"ncclcheck?", b"ncclcheck!"
_ANSWER_S = 1.0  # a host on the wire answers within a millisecond, one that is busy within 0.1 s
_MOST_ANSWERS = 20  # a second: each node asks every 15 s, so that this is enough for 300 of them
_MOST_READ = 200  # a second, of whatever comes: a flood costs node rank 0 no more time than that
_MOST_HEARD, _MOST_FOUND = 256, 16  # answers that are read, and places that are kept; bound hostile answers
_NONCE = 8  # bytes of a random number that an answer must repeat
_PORT = re.compile(rb" {0,4}[1-9][0-9]{0,4}")
_From = tuple[str, int, int, int]  # address, port, flow, number of the interface


class Answering:
    """Node rank 0's side: answers those who ask for this run on the port, until `close`."""

    def __init__(self, host: str, ports: tuple[int, int], run: str) -> None:
        """ports: the one on which it is asked for, and the one on which the meeting is."""
        self._port = b"%5d" % ports[1]
        self._question = _ASKED + run.encode()
        self._socket: socket.socket | None = None
        with suppress(OSError):
            if not is_loopback(host):
                self._socket = _bound(ports[0])
        if self._socket is not None:
            threading.Thread(target=self._serve, args=(self._socket,), daemon=True, name="hail").start()

    def _serve(self, sock: socket.socket) -> None:
        begun, read, answered = 0.0, 0, 0
        with suppress(OSError):
            while True:
                datagram, who = sock.recvfrom(256)
                now = time.monotonic()
                if now - begun >= 1:
                    begun, read, answered = now, 0, 0
                read += 1
                if self._is_asked(datagram, who) and answered < _MOST_ANSWERS:
                    answered += 1
                    with suppress(OSError):
                        sock.sendto(_ANSWERED + datagram[-_NONCE:] + self._port, who)
                if read >= _MOST_READ:
                    time.sleep(max(0.0, begun + 1 - now))

    def _is_asked(self, datagram: bytes, who: _From) -> bool:
        return (
            datagram[:-_NONCE] == self._question
            and len(datagram) == len(self._question) + _NONCE
            and _is_near(who)
        )

    def close(self) -> None:
        """Close the UDP socket, which ends the thread that answers."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()


def _bound(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(("::", port))
    except OSError:
        sock.close()
        raise
    return sock


def hail(ports: Sequence[int], run: str) -> list[tuple[str, int]]:
    """Where somebody on a wire of this host says that he leads this run: link-local address, and one of the ports.

    Whoever answers has one place, and some of them are drawn by chance: to be first is worth nothing.
    """
    nonce = secrets.token_bytes(_NONCE)
    heard: dict[str, int] = {}
    with suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        for index, _ in socket.if_nameindex():
            with suppress(OSError):  # an interface without IPv6
                sock.sendto(_ASKED + run.encode() + nonce, (_ALL_HOSTS, ports[0], 0, index))
        end = time.monotonic() + _ANSWER_S
        while (left := end - time.monotonic()) > 0:
            sock.settimeout(left)
            answer, who = sock.recvfrom(256)
            port = port_of(answer, nonce, ports)
            if port and _is_near(who) and len(heard) < _MOST_HEARD:
                heard.setdefault(_with_scope(who), port)
    return secrets.SystemRandom().sample([*heard.items()], min(len(heard), _MOST_FOUND))


def port_of(answer: bytes, nonce: bytes, ports: Sequence[int]) -> int:
    """The port that an answer to this very question names; 0 for whatever else came."""
    digits = answer.removeprefix(_ANSWERED + nonce)
    if len(digits) == len(answer) or not _PORT.fullmatch(digits) or int(digits) not in ports:
        return 0
    return int(digits)


def _is_near(who: _From) -> bool:
    """Whether it came over a wire of this host, or from this host itself."""
    address = ipaddress.IPv6Address(who[0].partition("%")[0])
    return address.is_link_local or address.is_loopback


def _with_scope(who: _From) -> str:
    """fe80::1%eth0: a link-local address means nothing without its interface."""
    address = who[0].partition("%")[0]
    return f"{address}%{socket.if_indextoname(who[3])}" if who[3] else address
