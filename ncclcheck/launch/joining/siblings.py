"""Several processes of a join on one node: local rank 0 speaks for it, the others wait for its outcome.

They meet on an abstract Unix socket (unix(7)), which leaves no file and is seen in this network namespace only.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from ncclcheck.base.errors import UsageError
from ncclcheck.base.leaving import at_leave
from ncclcheck.launch.joining.follow import StoppedBySignal
from ncclcheck.launch.joining.trust.identity import JoinIdentity

_APPEAR_S = 60.0  # s for local rank 0 to be there: a launcher starts a node's tasks together; chosen
_TELL_S = 10.0  # s for local ranks to take the verdict from local rank 0; chosen
_TICK = 0.1  # s between two looks whether to stop; chosen


@dataclass(frozen=True)
class SiblingOutcome:
    """What local rank 0 ends with."""

    exit_code: int
    line: str


class Siblings:
    """Local rank 0's side. Raises UsageError where another run of the same id is on this node."""

    def __init__(self, who: JoinIdentity) -> None:
        self._left = who.local_size - 1
        self._server = socket.socket(socket.AF_UNIX)
        try:
            self._server.bind(_name(who))
        except OSError:
            self._server.close()
            raise UsageError(
                f"--rdzv-id: node rank {who.node_rank} of this run has a local rank 0 on this node already;"
                " two runs need an id each"
            ) from None
        self._server.listen(who.local_size + 64)

    def tell_at_exit(self, outcome: SiblingOutcome) -> None:
        """Tell them when our own report is written: torchrun kills a node's ranks once one of them has failed."""
        at_leave(lambda: self.tell(outcome))

    def tell(self, outcome: SiblingOutcome) -> None:
        """Tell all of them, also those that are slow to start; not for ever."""
        end = time.monotonic() + _TELL_S
        while self._left and (left := end - time.monotonic()) > 0:
            self._server.settimeout(left)
            with suppress(OSError):
                connection, _ = self._server.accept()
                with connection:
                    if _uid(connection) == os.getuid():
                        connection.settimeout(1.0)
                        connection.sendall(msgspec.json.encode(outcome))
                        self._left -= 1
        self._server.close()


def await_outcome(who: JoinIdentity, seconds: float, stop: Callable[[], bool]) -> SiblingOutcome | None:
    """The other local ranks' side: None where local rank 0 was not there or is gone. Raises StoppedBySignal."""
    begun = time.monotonic()
    end = begun + seconds
    while time.monotonic() < min(end, begun + _APPEAR_S):
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(_name(who))
            except OSError:
                _pause(stop)
                continue
            return _read(connection, end, stop) if _uid(connection) == os.getuid() else None
    return None


def _read(connection: socket.socket, end: float, stop: Callable[[], bool]) -> SiblingOutcome | None:
    connection.settimeout(_TICK)
    data = b""
    while time.monotonic() < end:
        try:
            piece = connection.recv(65536)
        except TimeoutError:
            _pause(stop, 0.0)
            continue
        except OSError:
            return None
        if not piece:
            break
        data += piece
    try:
        return msgspec.json.decode(data, type=SiblingOutcome)
    except msgspec.MsgspecError:
        return None


def _pause(stop: Callable[[], bool], seconds: float = _TICK) -> None:
    if stop():
        raise StoppedBySignal
    time.sleep(seconds)


def _name(who: JoinIdentity) -> str:
    words = f"{os.getuid()} {who.run_id} {who.host} {who.ports} {who.node_rank}".encode(errors="backslashreplace")
    return "\0ncclcheck-" + hmac.new(who.secret.key, words, hashlib.sha256).hexdigest()[:32]


def _uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
