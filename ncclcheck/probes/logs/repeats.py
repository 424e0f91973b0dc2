"""What a rank says again and again, with the time, in lines of one shape: counted, and only the last is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

_OF_A_RANK = b"[rank"  # what torch writes before a line: who said it, whatever the other digits are
_MOST, _LONGEST = 4096, 2048  # shapes of ranks, and bytes of a line

Said = TypeVar("Said")


@dataclass
class Repeat(Generic[Said]):
    """Lines of one rank and one shape. signs: what each says; the rest of the last one since it was read."""

    signs: list[Said]
    count: int = 0
    number: int = 0
    line: bytes = b""
    stamp: str = ""


class Repeats(Generic[Said]):
    """Of one file. last: the line that was counted last, and what stood before it: its time is not read yet."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], Repeat[Said]] = {}
        self.last: tuple[str, bytes] | None = None

    def counted(self, line: bytes, shape: bytes, number: int, stamp: str) -> bool:
        """Whether this rank has said a line of this shape often enough; then it is counted."""
        if not line.startswith(_OF_A_RANK):
            return False
        known = self._known.get((line[: line.find(b"]") + 1], shape))
        if known is None:
            return False
        known.count += 1
        known.number, known.line, known.stamp = number, line, stamp
        self.last = (stamp, line)
        return True

    def learn(self, line: bytes, shape: bytes, signs: list[Said]) -> None:
        """From here on lines like this one are only counted."""
        if line.startswith(_OF_A_RANK) and len(line) <= _LONGEST and len(self._known) < _MOST:
            self._known[(line[: line.find(b"]") + 1], shape)] = Repeat(signs)

    def taken(self) -> Iterator[Repeat[Said]]:
        """What was counted since the last time."""
        for repeat in self._known.values():
            if repeat.count:
                yield repeat
                repeat.count = 0
