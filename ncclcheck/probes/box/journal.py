"""Files of a box: lines of JSON, written as they are seen, none of them without a bound."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
AGAIN = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC

# Bytes. Together with 16 MiB of output and 4 MiB of its times these are 36 MiB a box.
EVENTS = 4 * 2**20
SAMPLES = 6 * 2**20  # each of two files in turn; 72 processes fill one in half an hour


class Journal:
    """Lines that are appended until the file is full; with `turns` two files are filled in turn."""

    def __init__(self, path: str, most: int, *, turns: bool = False) -> None:
        self._path, self._most, self._turns, self._turn = path, most, turns, 0
        self._file, self._written = os.open(self._name(), NEW, 0o600), 0

    def _name(self) -> str:
        return f"{self._path}.{self._turn}.jsonl" if self._turns else f"{self._path}.jsonl"

    def add(self, event: dict[str, Any]) -> bool:
        """Write one line at once; whether there was room. A full disk loses it, and nothing else."""
        line = json.dumps(event, separators=(",", ":")).encode("ascii", "backslashreplace") + b"\n"
        if self._written + len(line) > self._most:
            if not self._turns:
                return False
            os.close(self._file)
            self._turn = 1 - self._turn
            self._file, self._written = os.open(self._name(), AGAIN, 0o600), 0
        with suppress(OSError):
            self._written += os.write(self._file, line)
        return True
