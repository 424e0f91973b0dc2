"""A node's open connection to node rank 0: lines in, lines out, none of them longer than it may be."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec

from ncclcheck.base import wire
from ncclcheck.launch.joining import join_protocol
from ncclcheck.launch.joining.trust.sealed import Seal
from ncclcheck.probes.facts import Meeting

_SEND_S = 15  # s until a peer that takes no data is given up; chosen


class LeadConnection:
    """An open connection to node rank 0, and the name that it gave us. seals: of our lines, and of its lines."""

    def __init__(self, connection: socket.socket, name: str, lines: SocketLines, seals: tuple[Seal, Seal]) -> None:
        self.name = name
        self.heard = time.monotonic()
        self.begun: float | None = None
        self.outcome: join_protocol.JoinOutcome | None = None
        self.lost = ""
        self.unreached: Meeting | None = None  # why the endpoint itself was not reached, where it was not
        self._connection, self._said = connection, lines
        self._ours, self._theirs = seals
        self._seq = 0

    def obey(self, node: int, give: Callable[[wire.FromLauncher], None]) -> None:
        """From now on its orders are given to us."""
        threading.Thread(target=self._obey, args=(node, give), daemon=True, name="orders").start()

    def _obey(self, node: int, give: Callable[[wire.FromLauncher], None]) -> None:
        try:
            for received in self._said:
                line = self._theirs.open(received)
                self.heard = time.monotonic()
                if line.startswith(b"{"):
                    self._note(join_protocol.from_meeting(line))
                elif (order := wire.read_order(line, node)) is not None:
                    give(order)
                if self.outcome is not None:
                    return
            self.lost = "it closed the connection"
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            self.lost = str(error)

    def _note(self, record: join_protocol.FromMeeting) -> None:
        if isinstance(record, join_protocol.JoinOutcome):
            self.outcome = record
        elif isinstance(record, join_protocol.Begun):
            self.begun = time.monotonic()

    def say(self, node: int, record: wire.FromAgent) -> None:
        """Pass on what our agent said."""
        self._seq += 1
        self._send(*wire.lines(record, node, self._seq))

    def tell(self, record: join_protocol.FromNode) -> None:
        """Send a record of this node itself, not of its agent."""
        self._send(join_protocol.encode(record))

    def _send(self, *lines: bytes) -> None:
        try:
            self._connection.sendall(b"".join(self._ours.close(line) for line in lines))
        except OSError as error:
            self.lost = self.lost or words(error)

    def close(self) -> None:
        """Close the connection to node rank 0."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class SocketLines:
    """Lines of a socket. Until `trust` is called they are short, for nobody knows yet who speaks."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._most = connection, join_protocol.MOST_FROM_NODE
        self._kept = b""

    def trust(self) -> None:
        """From now on lines may be long, and there is no limit of time; what we send has one."""
        self._most = join_protocol.MOST_FROM_MEETING
        self._connection.settimeout(None)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))

    def line(self, seconds: float | None = None) -> bytes:
        """The next line with its newline; empty at the end. Raises OSError, and ValueError for one too long."""
        end = None if seconds is None else time.monotonic() + seconds
        pieces = [self._kept]
        while b"\n" not in pieces[-1]:
            if sum(map(len, pieces)) > self._most:
                raise ValueError("a line without an end")
            if end is not None:
                self._connection.settimeout(max(0.01, end - time.monotonic()))
            pieces.append(self._connection.recv(65536))
            if not pieces[-1]:
                return b""
        line, _, self._kept = b"".join(pieces).partition(b"\n")
        return line + b"\n"

    def __iter__(self) -> Iterator[bytes]:
        while line := self.line():
            yield line


def words(error: OSError) -> str:
    """What the kernel says of an error."""
    return os.strerror(error.errno) if error.errno else str(error)
