"""Slurm node lists, `gpu-a[17-18,20],b1` or `r[1-2]n[01-10]`, without scontrol: containers have none."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from ncclcheck.base.errors import UsageError

MOST_NODES = 20_000  # nodes; bounds hostile expressions
VARIABLE = "NCCLCHECK_NODE_NAMES"
_MOST_TEXT = 400_000  # characters: 20 for each of MOST_NODES
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}", re.ASCII)
_PIECE = re.compile(r"\[(?P<ranges>[0-9,-]+)\]|(?P<text>[A-Za-z0-9_.-]+)|(?P<comma>,)", re.ASCII)
_RANGE = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d{1,15})", re.ASCII)


def expand(text: str, source: str) -> tuple[str, ...]:
    """The names in their order. Raises UsageError that names `source`, the variable that held the text."""
    try:
        return _expand(text.strip())
    except ValueError as error:
        raise UsageError(f"{source}: {text[:80]!r} is no list of nodes: {error}") from None


def _expand(text: str) -> tuple[str, ...]:
    if len(text) > _MOST_TEXT:
        raise ValueError(f"it has more than {_MOST_TEXT:,} characters")
    names: list[str] = []
    for element in _elements(text):
        count = 1
        for piece in element:
            count *= sum(len(numbers) for numbers, _ in piece) if isinstance(piece, list) else 1
        if count + len(names) > MOST_NODES:
            raise ValueError(f"it names more than {MOST_NODES:,} nodes")
        names += map("".join, itertools.product(*map(_spellings, element)))
    _check(names)
    return tuple(names)


_Piece = str | list[tuple[range, int]]


def _elements(text: str) -> Iterator[list[_Piece]]:
    """What stands between commas, as plain text and lists of (numbers, digits)."""
    element: list[_Piece] = []
    at = 0
    while at < len(text):
        match = _PIECE.match(text, at)
        if match is None:
            raise ValueError(f"{text[at : at + 20]!r} is not understood")
        at = match.end()
        if match["comma"]:
            yield element
            element = []
        else:
            element.append(match["text"] or [_range(part) for part in match["ranges"].split(",")])
    yield element


def _range(part: str) -> tuple[range, int]:
    match = _RANGE.fullmatch(part)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(f"{part!r} is no range of numbers")
    return range(int(match[1]), int(match[2] or match[1]) + 1), len(match[1])


def _spellings(piece: _Piece) -> list[str]:
    if isinstance(piece, str):
        return [piece]
    return [f"{number:0{digits}}" for numbers, digits in piece for number in numbers]


def _check(names: Sequence[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} cannot be the name of a node")
    if len(set(names)) < len(names):
        raise ValueError("it names a node twice")


def number_of(name: str, env: Mapping[str, str]) -> int | None:
    """The place of a node among the names that its launcher handed on; None where it handed on none."""
    if not env.get(VARIABLE):
        return None
    names = expand(env[VARIABLE], VARIABLE)
    if name not in names:
        raise UsageError(f"{VARIABLE}: {name} is not among its {len(names)} nodes")
    return names.index(name)


def fold(names: Sequence[str]) -> str:
    """The shortest simple expression of names, in their order: expand(fold(names)) gives them back."""
    folded: list[str] = []
    for (prefix, digits), group in itertools.groupby(map(_split, names), key=lambda parts: parts[:2]):
        numbers = [number for _, _, number in group]
        if digits == 0 or len(numbers) == 1:
            folded += [prefix if digits == 0 else f"{prefix}{number:0{digits}}" for number in numbers]
        else:
            folded.append(f"{prefix}[{','.join(_runs(numbers, digits))}]")
    return ",".join(folded)


def _split(name: str) -> tuple[str, int, int]:
    """A name as prefix, digits and number at its end; no digits where it ends in none."""
    match = _NUMBERED.fullmatch(name)
    return (match[1], len(match[2]), int(match[2])) if match else (name, 0, 0)


def _runs(numbers: Sequence[int], digits: int) -> Iterator[str]:
    """Successive numbers as FROM-TO."""
    begin = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            first, last = f"{numbers[begin]:0{digits}}", f"{numbers[end - 1]:0{digits}}"
            yield first if begin == end - 1 else f"{first}-{last}"
            begin = end
