"""Errors that end the program in an orderly way."""

from __future__ import annotations


class UsageError(Exception):
    """Wrong usage or configuration: one line on stderr, exit 2, nothing measured and nothing written."""


class Interrupted(Exception):
    """A signal asked us to end; what was gathered is still reported."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number
