"""TCP segments that every path carries, for connections that must work before the path is known.

Where a tunnel or a switch port loses large packets and no router says so, a connection opens, small messages pass,
and the first large one never arrives. Our control channel must say exactly that, so it sends no large packets.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

# Bytes of payload: what is left of 576, which every IPv4 host must take (RFC 791, RFC 9293), without IP and TCP
# headers. IPv6 carries 1280, so this fits there as well. The channel moves kilobytes: it costs nothing.
SMALL_SEGMENT = 536


def keep_small(sock: socket.socket) -> None:
    """Both ends of its connections to come send small segments: our SYN or SYN-ACK asks the other end for it."""
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT)


def connect(
    address: str, port: int, seconds: float, look: Callable[[socket.socket], object] = lambda _: None
) -> socket.socket:
    """A connection of small segments to a numeric address; look: at the socket if it fails. Raises OSError."""
    family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.settimeout(seconds)
        keep_small(sock)
        sock.connect(place)
    except OSError:
        look(sock)
        sock.close()
        raise
    return sock


def relay(host: str, port: int) -> None:
    """Be ssh's ProxyCommand: stdin goes there and what comes back to stdout, until either side ends."""
    with connect(host, port, 10.0) as there:
        there.settimeout(None)
        while True:
            readable, _, _ = select.select([0, there.fileno()], [], [])
            if there.fileno() in readable:
                if not (data := there.recv(65536)):
                    return
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            if 0 in readable:
                if not (data := os.read(0, 65536)):
                    return
                there.sendall(data)


if __name__ == "__main__":
    relay(sys.argv[1], int(sys.argv[2]))
