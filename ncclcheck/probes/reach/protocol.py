"""What a visitor and a listener say to each other, and the socket options that Python does not name.

TCP: the visitor says `TOKEN\\n`, the listener its node number `%d\\n`; then one-letter requests.
UDP: `TOKEN kind node seq` and padding; the answer adds how many small packets came, and the size that came.
"""

from __future__ import annotations

import socket
import struct

TOKEN_BYTES = 32  # bytes of the run's token

ASK_TIME = b"t"
ASK_BURST = b"b"
ASK_WHO = b"w"
TIME = struct.Struct("!q")
WHO = struct.Struct("!46s")  # the visitor's address as the listener sees it, in text
BURST_ORDER = struct.Struct("!d")
BURST_COUNT = struct.Struct("!Qdd")

PING, SIZED = 0, 1  # kinds of packets on the wire
PACKET = struct.Struct(f"!{TOKEN_BYTES}sBII")
ANSWER = struct.Struct(f"!{TOKEN_BYTES}sBIIII")
SMALL = 64  # bytes of a small packet: passes any MTU

BURST_S = 0.2  # s of a burst that is timed; chosen
WARM_UP_S = 0.05  # s before it is timed, for TCP's slow start; chosen

IP_MTU_DISCOVER, IP_MTU = 10, 14  # linux/in.h; Python's socket does not name them
IPV6_MTU_DISCOVER, IPV6_MTU, IPV6_DONTFRAG = 23, 24, 62  # linux/in6.h
PMTUDISC_DO = 2  # linux/in.h: never fragment

SocketAddress = tuple[str, int] | tuple[str, int, int, int]


def family_of(address: str) -> socket.AddressFamily:
    """The family of a numeric address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def place(address: str, port: int) -> SocketAddress:
    """A numeric address, with its scope where it has one, as sockets want it. Raises OSError."""
    infos = socket.getaddrinfo(address, port, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV)
    return infos[0][4]  # type: ignore[return-value]


def header_bytes(family: int) -> int:
    """IP and UDP headers of a packet without options."""
    return 48 if family == socket.AF_INET6 else 28


def read_exactly(sock: socket.socket, count: int) -> bytes:
    """So many bytes. Raises OSError, also where the other side closes before."""
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionResetError("closed by the other side")
        data += piece
    return data
