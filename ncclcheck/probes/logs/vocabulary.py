"""Which patterns a line may have, by its words: of the words in logs nearly all are in no pattern."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LETTERS = re.compile(r"[a-z]{3,}")
_MOST, _LONGEST = 65536, 40


class Vocabulary:
    """Remembers words that are in no pattern, and which patterns the others stand for.

    needed: for each pattern the texts of which one is in every line that has it; none: it may be in any line.
    """

    def __init__(self, needed: Sequence[Sequence[str]]) -> None:
        self._runs: dict[str, list[int]] = {}
        always = set()
        for index, texts in enumerate(needed):
            runs = {max(_LETTERS.findall(text.lower()), key=len, default="") for text in texts}
            if not runs or "" in runs:
                always.add(index)
                continue
            for run in runs:
                self._runs.setdefault(run, []).append(index)
        self._always = tuple(sorted(always))
        self._dull: set[str] = set()
        self._known: dict[str, tuple[int, ...]] = {}

    def candidates(self, text: str) -> Sequence[int]:
        """The numbers of the patterns that may be in a line, in their order."""
        words = {*_LETTERS.findall(text.lower())} - self._dull
        if not words:
            return self._always
        found = {*self._always}
        for word in words:
            hits = self._known.get(word)
            found.update(self._learnt(word) if hits is None else hits)
        return sorted(found)

    def _learnt(self, word: str) -> tuple[int, ...]:
        hits = tuple(index for run, indexes in self._runs.items() if run in word for index in indexes)
        if len(word) <= _LONGEST:
            if len(self._known) + len(self._dull) >= _MOST:
                self._known.clear()
                self._dull.clear()
            if hits:
                self._known[word] = hits
            else:
                self._dull.add(word)
        return hits
