"""Which signs a line has, fast: nearly all lines have none, and most look like one that was seen before."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from ncclcheck.probes.logs.lines import LONGEST
from ncclcheck.probes.logs.prefixes import HEAD, plain, prefix
from ncclcheck.probes.logs.signs import Sign, all_signs
from ncclcheck.probes.logs.vocabulary import Vocabulary

_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_MOST_SHAPES, _MOST_REMEMBERED = 65536, 2**23  # bytes
_SHORTEST = 3
_DIGIT = re.compile(r"\d")
_NO_DIGIT = re.compile(r"\{\d*,?\d*\}|\(\?P<\w+>|\\d")
_ENOUGH = 20
_TOKEN = re.compile(
    r"\\(?P<escaped>[^\w])|(?P<optional>[*?]|\{\d*,?\d*\})|(?P<class>\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|[().|+^$\d])"
    r"|(?P<plain>.)"
)


class Pattern(NamedTuple):
    """A sign, ready to be searched for. words: one of them is in every line that it is in; none: not known.

    any_case: the same, in lower case and with all digits alike, of such a line. digits: of a line they matter.
    """

    name: str
    search: re.Pattern[str]
    words: tuple[str, ...]
    any_case: tuple[str, ...]
    digits: bool
    often: bool
    check: Callable[[str], bool] | None = None
    last: bool = False

    def found_in(self, text: str) -> re.Match[str] | None:
        """Where it is in a line, if all of it is so."""
        found = self.search.search(text)
        return None if found and self.check and not self.check(text) else found

    def is_near(self, text: str) -> bool:
        """Whether a line with all digits alike has one of its words."""
        if self.any_case:
            lower = text.lower()
            return any(word in lower for word in self.any_case)
        return not self.words or any(word in text for word in self.words)

    def may_be_in(self, text: str) -> bool:
        """Whether it may be in lines that differ from this one in their digits."""
        return self.digits or self.found_in(text) is not None


class Matcher:
    """Remembers for each shape of line (digits are alike) which signs it may have.

    dull: shapes that have none, or only what was seen often enough.
    """

    def __init__(self, signs: Sequence[Sign] | None = None) -> None:
        self._patterns, self._vocabulary = _ready(all_signs() if signs is None else tuple(signs))
        self._frequent: dict[bytes, int] = {}
        self._shapes: dict[bytes, tuple[Pattern, ...]] = {}
        self.dull: set[bytes] = set()
        self._resting: set[bytes] = set()
        self._remembered = 0

    def may(self, line: bytes) -> tuple[Pattern, ...]:
        """The signs whose words are in a line."""
        shape = shape_of(line)
        if shape in self.dull:
            return ()
        found = self._shapes.get(shape)
        if found is None:
            found = self._searched(shape, line)
            self._make_room(shape)
            if not found:
                self.dull.add(shape)
                return ()
            self._shapes[shape] = found
        if found[0].often or found[0].last:  # all are: these stand last
            self._count(shape)
        return found

    def pass_over(self, shape: bytes, line: bytes) -> None:
        """A shape with a time before it: it has nothing for as long as the line has nothing."""
        if shape not in self.dull and len(shape) <= LONGEST:
            self._make_room(shape)
            self.dull.add(shape)
            if shape_of(line) in self._resting:
                self._resting.add(shape)

    def _make_room(self, shape: bytes) -> None:
        self._remembered += len(shape)
        if len(self._shapes) + len(self.dull) >= _MOST_SHAPES or self._remembered > _MOST_REMEMBERED:
            self._shapes.clear()
            self._frequent.clear()
            self.dull.clear()
            self._resting.clear()
            self._remembered = len(shape)

    def _searched(self, shape: bytes, line: bytes) -> tuple[Pattern, ...]:
        alike = shape.decode(errors="backslashreplace")
        candidates = (self._patterns[index] for index in self._vocabulary.candidates(alike))
        near = [one for one in candidates if one.is_near(alike)]
        text = bare(line.decode(errors="backslashreplace")) if near else ""
        return tuple(one for one in near if one.may_be_in(text))

    def _count(self, shape: bytes) -> None:
        """What sound logs are full of is not looked for in this shape until `again`, where enough was seen."""
        seen = self._frequent[shape] = self._frequent.get(shape, 0) + 1
        if seen >= _ENOUGH:
            self.dull.add(shape)
            self._resting.add(shape)

    def again(self) -> None:
        """Look once more for what was left out, so that its last line is known about."""
        self.dull -= self._resting
        self._resting.clear()

    @staticmethod
    def signs(text: str, patterns: Sequence[Pattern]) -> Iterator[tuple[str, dict[str, str]]]:
        """The signs that the line has, each with what is named in it."""
        known = False
        for one in patterns:
            if one.last and known:
                return
            if found := one.found_in(text):
                known = known or not one.often or one.last
                yield one.name, {key: value for key, value in found.groupdict().items() if value}


@lru_cache(maxsize=4)
def _ready(signs: tuple[Sign, ...]) -> tuple[list[Pattern], Vocabulary]:
    """The signs as patterns, those that are looked for last at the end; worked out once."""
    patterns = [
        Pattern(
            one.name,
            re.compile(one.pattern),
            words(one.pattern),
            tuple(shape_of(word.encode()).decode() for word in one.words),
            one.check is not None or _DIGIT.search(_NO_DIGIT.sub("", one.pattern)) is not None,
            one.often,
            one.check,
            one.last,
        )
        for one in sorted(signs, key=lambda one: (one.last, one.often))
    ]
    return patterns, Vocabulary([one.any_case or one.words for one in patterns])


def shape_of(text: bytes) -> bytes:
    """With all digits alike."""
    return text.translate(_DIGITS)


def bare(text: str) -> str:
    """A line without colours and without what launchers write before it."""
    text = plain(text)
    return text[prefix(text[:HEAD]).end :]


def words(pattern: str) -> tuple[str, ...]:
    """For each alternative its longest run of plain letters, which a line must hold; none where none is sure."""
    if "(?i" in pattern:
        return ()
    alternatives: list[list[str]] = [[""]]
    depth = 0
    for token in _TOKEN.finditer(pattern):
        runs = alternatives[-1]
        if token["plain"] or token["escaped"]:
            runs[-1] += "" if depth else token["plain"] or token["escaped"]
            continue
        if token["optional"]:
            runs[-1] = runs[-1][:-1]
        depth += (token[0] == "(") - (token[0] == ")")
        if token[0] == "|" and not depth:
            alternatives.append([])
        alternatives[-1].append("")
    best = [max(runs, key=len) for runs in alternatives]
    return tuple(best) if all(len(word) >= _SHORTEST for word in best) else ()
