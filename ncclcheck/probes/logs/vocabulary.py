"""Which patterns a line may have, by its words: of the words in logs nearly all are in no pattern."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

_LETTERS = re.compile(r"[a-z]{3,}")
# whose patterns are remembered: chosen, more than the vocabulary of a log apart from its numbers
_MOST = 16384
_LONG = 24  # letters; of a shorter word each part is looked up, which takes less time than to look for each run


class Vocabulary:
    """Looks for the longest run of letters of each text, for all at once.

    needed: for each pattern the texts of which one is in every line that has it; none: it may be in any line.
    near: finds whether a line, in lower case and ASCII, has any of these texts; most letters are passed over.
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
        self._any = re.compile(_anchored((*self._runs,)))
        every = {text.lower() for texts in needed for text in texts or [""]}
        self.near = re.compile(_anchored((*sorted(every),)).encode())
        self._lengths = sorted({len(run) for run in self._runs})
        self._of_word = lru_cache(_MOST)(self._patterns_of)

    def candidates(self, text: str) -> Sequence[int]:
        """The numbers of the patterns that may be in a line, in their order."""
        text = text.lower()
        numbers = {index for short, index in self._wordless if short in text}
        hit = self._any.search(text)
        for word in _LETTERS.finditer(text) if hit else ():
            if hit is None:
                break
            if hit.start() < word.end():
                numbers.update(self._of_word(word[0]))
                hit = self._any.search(text, word.end())
        return sorted(numbers)

    def _patterns_of(self, word: str) -> list[int]:
        if len(word) > _LONG:
            return [index for run, indexes in self._runs.items() if run in word for index in indexes]
        parts = {word[at : at + n] for n in self._lengths for at in range(len(word) - n + 1)}
        return [index for part in parts for index in self._runs.get(part, ())]


@cache
def _anchored(texts: tuple[str, ...]) -> str:
    """What finds any of these texts by a few letters of which each has one: the others are passed over.

    The search of `re` steps over a character that begins no alternative in 2 ns, and tries one that does in 50.
    Each text is tried from the first of these letters on, and what stands before that one is looked back for.
    """
    if "" in texts:
        return ""
    anchors = _anchors(texts)
    tree: dict[str, Any] = {}
    for text in texts:
        at = next(place for place, letter in enumerate(text) if letter in anchors)
        branch = tree
        for letter in text[at:]:
            branch = branch.setdefault(letter, {})
        branch.setdefault("", []).append(text)
    return _looking_back(tree)


def _anchors(texts: Iterable[str]) -> set[str]:
    """Letters and marks of which each text has one, those of the most texts first."""
    chosen: set[str] = set()
    left = [*texts]
    while left:
        counted = Counter(letter for text in left for letter in {*text})
        chosen.add(max(counted, key=lambda letter: (counted[letter] * _weight(letter), letter)))
        left = [text for text in left if chosen.isdisjoint(text)]
    return chosen


def _weight(letter: str) -> float:
    """How seldom it is in what people write: marks are, blanks and digits are not."""
    return 1.0 if letter.isalpha() else 0.01 if letter in " 0" else 5.0


def _looking_back(tree: dict[str, Any]) -> str:
    ends = [f"(?<={re.escape(text)})" for text in tree.get("", ())]
    parts = ends + [re.escape(letter) + _looking_back(rest) for letter, rest in tree.items() if letter]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"
