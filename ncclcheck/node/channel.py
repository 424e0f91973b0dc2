"""An agent's way to its launcher, and the lease that ends an agent whose launcher is silent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from ncclcheck.base import wire
from ncclcheck.probes.facts.guard.secrets import without_secrets

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

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._timer: threading.Timer | None = None

    def renew(self) -> None:
        """A beat came."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(_LEASE_S, self._end)
        self._timer.daemon = True
        self._timer.start()
