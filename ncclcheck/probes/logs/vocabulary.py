"""Which patterns a line may have, by its words: of the words in logs nearly all are in no pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

_LETTERS = re.compile(r"[a-z]{3,}")
_MOST = 16384


class Vocabulary:
    """Looks for the longest run of letters of each text, for all at once.

    needed: for each pattern the texts of which one is in every line that has it; none: it may be in any line.
    """

    def __init__(self, needed: Sequence[Sequence[str]]) -> None:
        self._runs: dict[str, list[int]] = {}
        self._wordless: list[tuple[str, int]] = []
        for index, texts in enumerate(needed):
            for text in {text.lower() for text in texts or [""]}:
                if run := max(_LETTERS.findall(text), key=len, default=""):
                    self._runs.setdefault(run, []).append(index)
                else:
                    self._wordless.append((text, index))
        self._any = re.compile(_one_of(self._runs))
        self._of_word = lru_cache(_MOST)(self._patterns_of)

    def candidates(self, text: str) -> Sequence[int]:
        """The numbers of the patterns that may be in a line, in their order."""
        text = text.lower()
        found = {index for short, index in self._wordless if short in text}
        if self._any.search(text):
            for word in _LETTERS.findall(text):
                found.update(self._of_word(word))
        return sorted(found)

    def _patterns_of(self, word: str) -> list[int]:
        if not self._any.search(word):
            return []
        return [index for run, indexes in self._runs.items() if run in word for index in indexes]


def _one_of(words: Iterable[str]) -> str:
    """`a(?:b|cd)`: what several begin with is tried once, many times faster than `ab|acd`.

    Of two words of which one begins the other, it has the shorter one.
    """
    tree: dict[str, Any] = {}
    for word in words:
        branch = tree
        for letter in word:
            branch = branch.setdefault(letter, {})
        branch[""] = {}
    return _written(tree)


def _written(tree: dict[str, Any]) -> str:
    if "" in tree:
        return ""
    parts = [re.escape(letter) + _written(rest) for letter, rest in tree.items()]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"
