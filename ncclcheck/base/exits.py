"""Exit codes: a contract with job scripts."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What the shell sees; the text report's last line says the same."""

    READY = 0
    FAILED = 1
    USAGE = 2
    INCOMPLETE = 3


# A command of the user's that is not on PATH, or that could not be started. Source: bash(1), EXIT STATUS.
NOT_FOUND, NOT_STARTED = 127, 126


def of_signal(number: int) -> int:
    """The shell's code for a process that a signal ended: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + number


def of_outcome(outcome: str, *, strict: bool) -> Exit:
    """The code of a document's state. `unknown` alone is ready: an ordinary user never sees everything."""
    if outcome == "fail" or (strict and outcome != "ok"):
        return Exit.FAILED
    return Exit.INCOMPLETE if outcome == "incomplete" else Exit.READY
