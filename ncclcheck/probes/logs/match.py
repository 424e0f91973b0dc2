"""Which signs a line has, fast: nearly all lines have none, and most look like one that was seen before."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from ncclcheck.probes.facts.log.fields import WrittenFields, named_in
from ncclcheck.probes.logs.files.lines import LONGEST, MARK
from ncclcheck.probes.logs.files.prefixes import HEAD, plain, prefix
from ncclcheck.probes.logs.signs import Sign, all_signs
from ncclcheck.probes.logs.vocabulary import Vocabulary

_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_MOST_SHAPES, _MOST_REMEMBERED = 65536, 2**23  # bytes
_MOST_FAR = 8192  # of at most LONGEST bytes each, and mostly of a hundred
_LEARNT = 1024  # first lines of a block (MiB) whose shapes are kept: what repeats is among them, prose never does
_SHORTEST = 3  # letters: shorter words are in nearly every line; chosen
_DIGIT = re.compile(r"\d")
_NO_DIGIT = re.compile(r"\{\d*,?\d*\}|\(\?P<\w+>|\\d")
_ENOUGH = 20  # lines of one shape, then it is dull: chosen, sound logs repeat theirs thousands of times
_TOKEN = re.compile(
    r"\\(?P<escaped>[^\w])|(?P<optional>[*?]|\{\d*,?\d*\})|(?P<class>\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|[().|+^$\d])"
    r"|(?P<plain>.)"
)


class SignPattern(NamedTuple):
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
        match = self.search.search(text)
        return None if match and self.check and not self.check(text) else match

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

    shapes: what each may have. dull: those that have none, or only what was seen often enough. far: those of ASCII
    in which `near` finds no word of any sign. every: whether the next line is wanted, whatever is in it.
    """

    def __init__(self, signs: Sequence[Sign] | None = None) -> None:
        self._patterns, self._vocabulary = _ready(all_signs() if signs is None else tuple(signs))
        self.near = self._vocabulary.near.search  # in lower case, with all digits alike
        self.every = False
        self._frequent: dict[bytes, int] = {}
        self.shapes: dict[bytes, tuple[SignPattern, ...]] = {}
        self.dull: set[bytes] = set()
        self.far: set[bytes] = set()
        self._resting: set[bytes] = set()
        self._remembered = 0

    def may(self, line: bytes) -> tuple[SignPattern, ...]:
        """The signs whose words are in a line."""
        shape = shape_of(line)
        if shape in self.dull:
            return ()
        patterns = self.shapes.get(shape)
        if patterns is None:
            patterns = self._searched(shape, line)
            self._make_room(shape)
            if not patterns:
                self.dull.add(shape)
                return ()
            self.shapes[shape] = patterns
        if patterns[0].often or patterns[0].last:  # all are: these stand last
            self._count(shape)
        return patterns

    def worth_reading(self, block: bytes, first: int) -> Iterator[tuple[int, bytes, bytes, int]]:
        """Number, line, shape and where NCCL's mark is, of lines that NCCL printed or that may have a sign.

        Where most of the first lines are new and have no word of any sign, the rest is prose, searched as a whole.
        """
        head = self._head_of(block)
        unlike = yield from self._each(block[:head], first, learn=True)
        if head == len(block):
            return
        rest, number = block[head + 1 :], first + _LEARNT
        if 2 * unlike > _LEARNT and MARK not in rest and rest.isascii():
            yield from self._found(rest, number)
        else:
            yield from self._each(rest, number, learn=False)

    @staticmethod
    def _head_of(block: bytes) -> int:
        """Where the first lines of a block end."""
        *_, rest = parts = block.split(b"\n", _LEARNT)
        return len(block) - len(rest) - 1 if len(parts) > _LEARNT else len(block)

    def _each(
        self, block: bytes, first: int, *, learn: bool
    ) -> Generator[tuple[int, bytes, bytes, int], None, int]:
        """Line by line. Returns how many were new and have no word. learn: keep the shapes of those."""
        dull, far, shapes, near, unlike = self.dull, self.far, self.shapes, self.near, 0
        pairs = zip(block.split(b"\n"), shape_of(block).split(b"\n"), strict=True)
        for number, (line, shape) in enumerate(pairs, first):
            at = line.find(MARK)
            if at < 0 and not self.every:
                if shape in dull or shape in far:
                    continue
                if shape not in shapes and near(shape.lower()) is None and shape.isascii():
                    unlike += 1
                    if learn and len(shape) <= LONGEST:
                        far.add(shape)
                    continue
            yield number, line, shape, at
        return unlike

    def _found(self, lines: bytes, number: int) -> Iterator[tuple[int, bytes, bytes, int]]:
        """Those with a word of a sign, found in all at once."""
        shaped = shape_of(lines)
        low, end, counted = shaped.lower(), -1, 0
        while end < len(low) and (hit := self.near(low, end + 1)):
            begin, end = low.rfind(b"\n", 0, hit.start()) + 1, low.find(b"\n", hit.end())
            end = len(low) if end < 0 else end
            number += low.count(b"\n", counted, begin)
            counted = begin
            yield number, lines[begin:end], shaped[begin:end], -1
            while self.every and end < len(low):
                begin, end = end + 1, low.find(b"\n", end + 1)
                end = len(low) if end < 0 else end
                number, counted = number + 1, begin
                yield number, lines[begin:end], shaped[begin:end], -1

    def pass_over(self, shape: bytes, line: bytes) -> None:
        """A shape with a time before it: it has nothing for as long as the line has nothing."""
        if shape not in self.dull and len(shape) <= LONGEST:
            self._make_room(shape)
            self.dull.add(shape)
            if shape_of(line) in self._resting:
                self._resting.add(shape)

    def _make_room(self, shape: bytes) -> None:
        self._remembered += len(shape)
        if len(self.shapes) + len(self.dull) >= _MOST_SHAPES or self._remembered > _MOST_REMEMBERED:
            self.shapes.clear()
            self._frequent.clear()
            self.dull.clear()
            self._resting.clear()
            self._remembered = len(shape)

    def _searched(self, shape: bytes, line: bytes) -> tuple[SignPattern, ...]:
        alike = shape.decode(errors="backslashreplace")
        candidates = (self._patterns[index] for index in self._vocabulary.candidates(alike))
        near = [candidate for candidate in candidates if candidate.is_near(alike)]
        text = bare(line.decode(errors="backslashreplace")) if near else ""
        return tuple(candidate for candidate in near if candidate.may_be_in(text))

    def _count(self, shape: bytes) -> None:
        """What healthy logs are full of is not looked for in this shape until `again`, where enough was seen."""
        seen = self._frequent[shape] = self._frequent.get(shape, 0) + 1
        if seen >= _ENOUGH:
            self.dull.add(shape)
            self._resting.add(shape)

    def again(self) -> None:
        """Look once more for what was left out, so that its last line is known about; no set grows without end."""
        if len(self.far) > _MOST_FAR:
            self.far.clear()
        self.dull -= self._resting
        self._resting.clear()

    @staticmethod
    def signs(text: str, patterns: Sequence[SignPattern]) -> Iterator[tuple[str, WrittenFields]]:
        """The signs that the line has, each with what is named in it."""
        known = False
        for pattern in patterns:
            if pattern.last and known:
                return
            if match := pattern.found_in(text):
                known = known or not pattern.often or pattern.last
                yield pattern.name, named_in(match)


@lru_cache(maxsize=4)
def _ready(signs: tuple[Sign, ...]) -> tuple[list[SignPattern], Vocabulary]:
    """The signs as patterns, those that are looked for last at the end; worked out once."""
    patterns = [
        SignPattern(
            sign.name,
            re.compile(sign.pattern),
            words(sign.pattern),
            tuple(shape_of(word.encode()).decode() for word in sign.words),
            sign.check is not None or _DIGIT.search(_NO_DIGIT.sub("", sign.pattern)) is not None,
            sign.often,
            sign.check,
            sign.last,
        )
        for sign in sorted(signs, key=lambda sign: (sign.last, sign.often))
    ]
    return patterns, Vocabulary([pattern.any_case or pattern.words for pattern in patterns])


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
