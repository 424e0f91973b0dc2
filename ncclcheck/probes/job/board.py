"""A notice board that ranks write on for each other: c10d's store, without any collective.

Where one connection of a gloo group times out, the whole group is closed. The store has connections of its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any

import torch.distributed as dist

_AT_ONCE = 1000  # notes in one message: what the store takes in one is limited
_NO_NOTE = "\0none"  # written by nobody: a note is JSON or a digit


class Board:
    """Notes of bytes under keys. A lost store raises RuntimeError; a note that does not come is None."""

    def __init__(self, name: str, store: Any = None) -> None:
        every: Any = dist
        self._store = every.PrefixStore(f"ncclcheck/{name}", store or every.distributed_c10d._get_default_store())
        self._mine: list[str] = []

    def put(self, notes: Mapping[str, bytes]) -> None:
        """Write notes, many in one message."""
        left = iter(notes.items())
        while some := dict(islice(left, _AT_ONCE)):
            self._store.multi_set([*some], [note.decode() for note in some.values()])

    def put_own(self, key: str, note: bytes) -> None:
        """Write a note that `tidy` will take down."""
        self._mine.append(key)
        self.put({key: note})

    def has(self, key: str) -> bool:
        """Whether a note is there now; asking never waits.

        torch 2.1 has no `check`. What compare_set expects and writes here is the same, so it changes nothing, and
        a key that is not there is answered with what was expected.
        """
        if hasattr(self._store, "check"):
            return bool(self._store.check([key]))
        return bytes(self._store.compare_set(key, _NO_NOTE, _NO_NOTE)) != _NO_NOTE.encode()

    def read(self, key: str, seconds: float) -> bytes | None:
        """One note, waited for so long."""
        return self.read_all([key], seconds).get(key)

    def take(self, key: str, seconds: float) -> bytes | None:
        """One note, waited for so long, and taken down."""
        note = self.read(key, seconds)
        if note is not None:
            self._store.delete_key(key)
        return note

    def read_all(self, keys: Sequence[str], seconds: float) -> dict[str, bytes]:
        """All notes that are there after so long at most."""
        end = time.monotonic() + seconds
        notes: dict[str, bytes] = {}
        for start in range(0, len(keys), _AT_ONCE):
            some = [*keys[start : start + _AT_ONCE]]
            if not self._there(some, end - time.monotonic()):
                some = [key for key in some if self.has(key)]
            notes |= dict(zip(some, map(bytes, self._store.multi_get(some)), strict=True)) if some else {}
        return notes

    def tidy(self) -> None:
        """Take down our own notes; those whom they were for have read them, or never will."""
        for key in self._mine:
            self._store.delete_key(key)
        self._mine.clear()

    def _there(self, keys: list[str], seconds: float) -> bool:
        begun, limit = time.monotonic(), max(seconds, 0.05)
        try:
            self._store.wait(keys, timedelta(seconds=limit))
        except RuntimeError:
            if time.monotonic() - begun < 0.9 * limit:
                raise  # not the time limit: the store is gone
            return False
        return True


class RankOrders:
    """Rank 0's. Each rank reads its own only, one after the other: all in one place would be read by all."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._given: Counter[int] = Counter()

    def give(self, notes: Mapping[int, bytes]) -> None:
        """To each rank its next one."""
        self._board.put({order_key(rank, self._given[rank]): note for rank, note in notes.items()})
        self._given.update(notes.keys())


def order_key(rank: int, number: int) -> str:
    """Where the order of that number for a rank stands."""
    return f"order/{rank}/{number}"
