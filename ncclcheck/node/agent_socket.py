"""What an agent hears from the processes of its run: records on a Unix socket in the run's private folder."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

from ncclcheck.base import wire

RUN_VARIABLE = "NCCLCHECK_RUN_DIR"

Heard = Callable[["wire.FromAgent | int"], None]


def listen(folder: str, heard: Heard) -> None:
    """`heard` gets every record, and the pid of a process whose line closed. Raises OSError."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{folder}/agent.sock")
    server.listen(1024)
    threading.Thread(target=_accept, args=(server, heard), daemon=True).start()


def _accept(server: socket.socket, heard: Heard) -> None:
    while True:
        connection, _ = server.accept()
        threading.Thread(target=_hear, args=(connection, heard), daemon=True).start()


def _hear(connection: socket.socket, heard: Heard) -> None:
    pid = -1
    with connection, connection.makefile("rb") as stream:
        for line in iter(lambda: stream.readline(wire.MOST_RECORD), b""):
            try:
                record = wire.read_from_rank(line)
            except wire.NoRecord:
                continue
            if isinstance(record, wire.RankReport) and record.state.pid is not None:
                pid = record.state.pid
            heard(record)
    heard(pid)


class Mouth:
    """The end of the socket in a rank or an examiner, which sends records."""

    def __init__(self, folder: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(10)
        self._socket.connect(f"{folder}/agent.sock")
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def say(self, record: wire.FromAgent) -> None:
        """Send one record; an agent that is gone ends us by the kernel's hand. A forked child says nothing."""
        if os.getpid() == self._owner:
            with self._lock:
                self._socket.sendall(wire.encode_from_rank(record))
