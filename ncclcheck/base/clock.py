"""Deadlines."""

from __future__ import annotations

import time


class Deadline:
    """A point in time that counts from the program's start; nothing waits past it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.at = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())
