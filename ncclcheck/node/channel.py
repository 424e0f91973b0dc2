"""An agent's way to its launcher, and the lease that ends an agent whose launcher is silent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from ncclcheck.base import wire
from ncclcheck.probes.facts.guard.secrets import without_secrets

# without a word of the launcher, which speaks far more often; longer than a stall of the network that TCP
# survives: chosen
_LEASE_S = 90.0


class Channel:
    """The way to the launcher: records in short lines on what was stdout."""

    def __init__(self, node: int) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)
        self._node, self._seq = node, 0
        self._lock = threading.Lock()

    def say(self, record: wire.FromAgent) -> None:
        """Send one record. A launcher that is gone is noticed on stdin."""
        with self._lock, suppress(OSError):
            self._seq += 1
            for line in wire.lines(without_secrets(record), self._node, self._seq):
                os.write(self._out, line)


class Lease:
    """Ends the agent when beats of the launcher, once begun, stay away: it was cut off, or it is stopped."""

    def __init__(self, end: Callable[[], None], seconds: float = _LEASE_S) -> None:
        self._end, self._seconds = end, seconds
        self._beats: SimpleQueue[None] = SimpleQueue()

    def begin(self) -> None:
        """Its one thread, made before all others: later the node may allow none (pids.max)."""
        threading.Thread(target=self._wait, daemon=True).start()

    def renew(self) -> None:
        """Count the lease anew, since the launcher has spoken."""
        self._beats.put(None)

    def _wait(self) -> None:
        self._beats.get()
        with suppress(Empty):
            while True:
                self._beats.get(timeout=self._seconds)
        self._end()
