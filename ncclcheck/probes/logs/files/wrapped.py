"""Lines that something cut to its width: a terminal, and the cells of a table. They are put together again."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ncclcheck.probes.logs.files.lines import LONGEST, MARK

_NARROWEST = 72  # bytes of a line that a terminal may have cut: chosen, below the usual 80
# What torch's watchdog prints has its numbers within brackets, and never ends before they close.
_CUT = re.compile(rb"WorkNCCL\([^)]{0,600}$|\] Watchdog (?:c|ca|cau|caught[^()]{0,60})$")
# A row of a table with something in its first cell; what goes on below has blanks there.
_ROW = re.compile(rb"\s{0,8}\|(?P<first>[^|]{1,60})\|(?:[^|]{0,40}\|){0,4}(?P<last>[^|]{20,400})\|\s{0,20}$")
_MOST_LINES = 8  # of one: chosen, four of 80 columns hold a watchdog's; of a cell the first say why


@dataclass
class Wrapped:
    """pending: a line that goes on, as far as it was put together. number: where it began. lines: how many it is.

    cell: what the last row had in its last cell, of a table.
    """

    pending: bytes = b""
    number: int = 0
    lines: int = 0
    cell: bytes = b""

    def take(self, line: bytes, number: int) -> list[tuple[bytes, int]]:
        """The lines that are whole now, with their numbers."""
        if (
            self.pending
            and number == self.number + self.lines
            and self.lines < _MOST_LINES
            and self._goes_on(line)
        ):
            return [] if self.cell or _CUT.search(self.pending.rstrip()) else self.rest()
        before = self.rest()
        row = _ROW.match(line[:LONGEST])
        if row and row["first"].strip():
            self.pending, self.cell = line[: row.end("last")].rstrip(), row["last"]
        elif len(line) >= _NARROWEST and _CUT.search(line[:LONGEST].rstrip()):
            self.pending, self.cell = line[:LONGEST], b""
        else:
            return [*before, (line, number)]
        self.number, self.lines = number, 1
        return before

    def rest(self) -> list[tuple[bytes, int]]:
        """The line that was held, where it does not go on, and at the end of the file."""
        line, self.pending = self.pending, b""
        return [(line, self.number)] if line else []

    def _goes_on(self, line: bytes) -> bool:
        """Whether the next line belongs to the held one, and is then put to it."""
        if not self.cell:
            if line[:1] in (b"[", b"|") or MARK in line or not line.strip():
                return False
            self.pending += line
        else:
            row = _ROW.match(line[:LONGEST])
            if row is None or row["first"].strip():
                return False
            # A cell is filled but for one blank at each side: a word that was cut goes on at once.
            self.pending += (b"" if self.cell[-2:-1].strip() else b" ") + row["last"][1:].rstrip()
            self.cell = row["last"]
        self.lines += 1
        return True
