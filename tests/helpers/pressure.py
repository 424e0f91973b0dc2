"""How short of cores this machine is, as the kernel counts it: no time limit of a test depends on other work."""

from __future__ import annotations

import time
from pathlib import Path

_FILE = Path("/proc/pressure/cpu")  # Linux 4.20 and later, where the kernel was built with PSI


class Pressure:
    """From its making on: the share of the time in which some process waited for a core, 0 to 1."""

    def __init__(self) -> None:
        self._begun, self._waited = time.monotonic(), _waited_s()

    @property
    def share(self) -> float:
        """0 where the kernel does not count it."""
        passed = time.monotonic() - self._begun
        return min(1.0, (_waited_s() - self._waited) / passed) if passed > 0 else 0.0


def _waited_s() -> float:
    """Seconds since the machine's start in which some process waited for a core."""
    try:
        some = _FILE.read_text().splitlines()[0]
    except OSError:
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6
