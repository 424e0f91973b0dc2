"""Ranks that all raised the same at once, as after a collective has spread a value, and whose value it was."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ncclcheck.reports.subjects.box.failure import BoxFailure, frames

# Seconds between them: a launcher ends the others within a second or two of the first.
_AT_ONCE_S = 2.0
_NUMBER = re.compile(r"0x\w+|[-+]?\d[\d.]*(?:e[-+]?\d+)?")
NOT_FINITE = re.compile(r"(?i)(?<![\w.])[-+]?(?:nan|inf)(?![\w])")
_ABOUT = re.compile(r"(?i)\b(?:nans?|inf|infinite|infinity|(?:non-?)?finite|overflow\w*|diverge\w*)\b")
_WHOLE = re.compile(r"(?<![\w.])\d+(?![\w.]*\d)")
_LIST = re.compile(r"[\[(]([^\[\]()]*)[\])]")
_MOST_LIKE = 3  # ranks: of two that differ none is the odd one
_SAID = 120  # characters of what one of them said: chosen, two fit on two lines
_PRINTED = "printed before, by it alone"


def with_it(first: BoxFailure, own: Sequence[BoxFailure]) -> list[BoxFailure]:
    """Those of other ranks that say the same from the same line, in the order of ranks; with the first."""
    if first.rank < 0 or (first.raised is not None and first.raised.thread):
        return [first]
    by_rank = {failure.rank: failure for failure in reversed(own) if _same(failure, first)}
    return [by_rank[rank] for rank in sorted(by_rank)]


def _same(failure: BoxFailure, first: BoxFailure) -> bool:
    if failure.rank < 0 or failure.kind != first.kind or failure.t - first.t > _AT_ONCE_S:
        return False
    if failure.raised is None or first.raised is None:
        ends = [end.process.status for end in (failure, first) if end.process is not None and end.kind == "exit"]
        return len(ends) == 2 and ends[0] == ends[1] and failure.raised is first.raised
    if failure.raised.thread:
        return False
    words, others = (_NUMBER.sub("#", raised.message) for raised in (failure.raised, first.raised))
    here, there = (next(iter(frames(end)), "") for end in (failure, first))
    return (failure.raised.type, words, here) == (first.raised.type, others, there)


def source(same: Sequence[BoxFailure]) -> tuple[BoxFailure, str, str] | None:
    """The one rank of them from which it came, how that is known, and the words of it."""
    return _by_names(same) or _by_lines(same) or _by_values(same) or _by_words(same)


def _by_names(same: Sequence[BoxFailure]) -> tuple[BoxFailure, str, str] | None:
    """By variables that are not finite in one rank alone, such as its input or its own loss."""
    names = {peer.rank: {*peer.raised.not_finite} for peer in same if peer.raised is not None}
    messages = [f"{peer.raised.type}: {peer.raised.message}" for peer in same if peer.raised is not None]
    if len(names) < 2 or not (all(names.values()) or any(map(_ABOUT.search, messages))):
        return None
    alone = []
    for failure in same:
        others = set[str]().union(*(lost for rank, lost in names.items() if rank != failure.rank))
        if own := names.get(failure.rank, set()) - others:
            alone.append((failure, "not finite there, by it alone", ", ".join(sorted(own))))
    return alone[0] if len(alone) == 1 else None


def _by_lines(same: Sequence[BoxFailure]) -> tuple[BoxFailure, str, str] | None:
    """By the first lines with such a value: one rank alone printed one, or did so a step before the others."""
    first = [(failure, line) for failure in same if (line := _odd(failure))]
    last = [(failure, line) for failure in same for line in [*_printed(failure)][-1:] if NOT_FINITE.search(line)]
    heard = all(failure.process is not None and failure.process.printed for failure in same)
    if len(first) == 1 and heard:
        return first[0][0], _PRINTED, first[0][1]
    if len(first) == len(same) and (odd := _a_step_before(first)) is not None:
        return odd[0], _PRINTED, odd[1]
    if len(last) == 1 and all([*_printed(failure)] for failure in same):
        return last[0][0], _PRINTED, last[0][1]
    return None


def _odd(failure: BoxFailure) -> str:
    line = failure.process.odd if failure.process is not None else ""
    return "" if failure.raised is not None and line.startswith(failure.raised.type) else line


def _a_step_before(first: Sequence[tuple[BoxFailure, str]]) -> tuple[BoxFailure, str] | None:
    """Lines that differ in whole numbers alone: a smaller one than all the others' is of a step before."""
    numbers = [[int(number) for number in _WHOLE.findall(line)] for _, line in first]
    shapes = {_NUMBER.sub("#", line) for _, line in first}
    if len(shapes) != 1 or len({*map(len, numbers)}) != 1:
        return None
    ranks = tuple(failure.rank for failure, _ in first)
    for column in zip(*numbers, strict=True):
        least = min(column)
        if column != ranks and len({*column}) == 2 and column.count(least) == 1:
            return first[column.index(least)]
    return None


def _by_values(same: Sequence[BoxFailure]) -> tuple[BoxFailure, str, str] | None:
    """By a list in the message with a value of each rank, of which one differs from all others."""
    world = same[0].box.world
    words = same[0].raised.message if same[0].raised is not None else ""
    if world < _MOST_LIKE or any(failure.raised is None or failure.raised.message != words for failure in same):
        return None
    for listed in _LIST.findall(words):
        values = [value.strip() for value in listed.split(",")]
        usual, count = Counter(values).most_common(1)[0]
        if len(values) == world and count == world - 1:
            rank = next(at for at, value in enumerate(values) if value != usual)
            odd = next((failure for failure in same if failure.rank == rank), None)
            if odd is not None:
                return odd, "by the list in its words", f"rank {rank} has {values[rank]}, and all others {usual}"
    return None


def _by_words(same: Sequence[BoxFailure]) -> tuple[BoxFailure, str, str] | None:
    """By numbers in what each of them says, where all ranks but one say the same, such as how much each has."""
    if len(same) < max(_MOST_LIKE, same[0].box.world) or any(failure.raised is None for failure in same):
        return None
    messages = [failure.raised.message for failure in same if failure.raised is not None]
    odd = {at for column in _columns(messages) if (at := _alone(column)) is not None}
    if len(odd) != 1:
        return None
    [at] = odd
    usual = next(message for other, message in enumerate(messages) if other != at)
    words = f"{_line(messages[at])}; rank {same[at - 1 if at else 1].rank}, as all others: {_line(usual)}"
    return same[at], "by what the ranks say, all others the same", words


def _columns(messages: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """What stands in the same place of each, where it is a number; addresses in memory are none."""
    numbers = [[number for number in _NUMBER.findall(words) if "0x" not in number] for words in messages]
    yield from zip(*numbers, strict=len({*map(len, numbers)}) == 1)


def _alone(column: tuple[str, ...]) -> int | None:
    """Where one value differs and all others are one: not their own numbers, as those of ranks are."""
    usual, count = Counter(column).most_common(1)[0]
    return next(at for at, value in enumerate(column) if value != usual) if count == len(column) - 1 else None


def _line(message: str) -> str:
    return " ".join(message.split())[:_SAID]


def _printed(failure: BoxFailure) -> Iterator[str]:
    """Lines of this rank, without that of the exception."""
    name = failure.raised.type if failure.raised is not None else ""
    yield from (
        line for line in (failure.process.printed if failure.process is not None else ()) if name not in line
    )
