"""Find node rank 0 on the wires here, where neither its name nor a route leads to it.

A question to all IPv6 hosts of a link (ff02::1, RFC 4291) needs no address, no name, no route and no router. Node
rank 0 answers whoever names the run, with no more bytes than came; that it is node rank 0 is proved by the join
that follows. Nothing is asked before the endpoint has failed for seconds.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from contextlib import suppress

from ncclcheck.launch.given import is_loopback

_ALL_HOSTS = "ff02::1"
_ASKED, _ANSWERED = b"ncclcheck?", b"ncclcheck!"
_ANSWER_S = 1.0  # a host on the wire answers within a millisecond, one that is busy within 0.1 s
_MOST_ANSWERS = 20  # a second: each node asks every 15 s, so that this is enough for 300 of them
_MOST_FOUND = 4  # answers to a broadcast that are looked at; bounds hostile answers
_NONCE = 8  # bytes of a random number that an answer must repeat


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
        second, answered = 0, 0
        with suppress(OSError):
            while True:
                said, who = sock.recvfrom(256)
                now = int(time.monotonic())
                second, answered = now, answered if now == second else 0
                if said[:-_NONCE] != self._question or answered >= _MOST_ANSWERS:
                    continue
                answered += 1
                with suppress(OSError):
                    sock.sendto(_ANSWERED + said[-_NONCE:] + self._port, who)

    def close(self) -> None:
        """Answer no more."""
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


def hail(port: int, run: str) -> list[tuple[str, int]]:
    """Where somebody on a wire of this host says that he leads this run: link-local address and port."""
    nonce = secrets.token_bytes(_NONCE)
    found: dict[tuple[str, int], None] = {}
    with suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        for index, _ in socket.if_nameindex():
            with suppress(OSError):  # an interface without IPv6
                sock.sendto(_ASKED + run.encode() + nonce, (_ALL_HOSTS, port, 0, index))
        end = time.monotonic() + _ANSWER_S
        while len(found) < _MOST_FOUND and (left := end - time.monotonic()) > 0:
            sock.settimeout(left)
            said, who = sock.recvfrom(256)
            told = said.removeprefix(_ANSWERED + nonce).strip()
            if said.startswith(_ANSWERED + nonce) and told.isdigit() and 0 < int(told) < 65536:
                found[_with_scope(who), int(told)] = None
    return list(found)


def _with_scope(who: tuple[str, int, int, int]) -> str:
    """fe80::1%eth0: a link-local address means nothing without its interface."""
    address = who[0].partition("%")[0]
    return f"{address}%{socket.if_indextoname(who[3])}" if who[3] else address
