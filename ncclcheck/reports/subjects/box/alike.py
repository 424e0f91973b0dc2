"""Ranks that all raised the same at once, as after a collective has spread a value, and whose value it was."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ncclcheck.reports.subjects.box.failure import Failure, frames

# Seconds between them: a launcher ends the others within a second or two of the first.
_AT_ONCE_S = 2.0
_NUMBER = re.compile(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?|0x\w+")
_NOT_FINITE = re.compile(r"(?i)(?<![\w.])[-+]?(?:nan|inf)(?![\w])")


def with_it(first: Failure, own: Sequence[Failure]) -> list[Failure]:
    """Those of other ranks that say the same from the same line, in the order of ranks; with the first."""
    if first.rank < 0 or (first.raised is not None and first.raised.thread):
        return [first]
    told = {one.rank: one for one in reversed(own) if _same(one, first)}
    return [told[rank] for rank in sorted(told)]


def _same(failure: Failure, first: Failure) -> bool:
    if failure.rank < 0 or failure.kind != first.kind or failure.t - first.t > _AT_ONCE_S:
        return False
    if failure.raised is None or first.raised is None:
        ends = [
            told.process.status for told in (failure, first) if told.process is not None and told.kind == "exit"
        ]
        return len(ends) == 2 and ends[0] == ends[1] and failure.raised is first.raised
    if failure.raised.thread:
        return False
    words, others = (_NUMBER.sub("#", raised.message) for raised in (failure.raised, first.raised))
    here, there = (next(iter(frames(told)), "") for told in (failure, first))
    return (failure.raised.type, words, here) == (first.raised.type, others, there)


def source(same: Sequence[Failure]) -> tuple[Failure, str] | None:
    """The one rank that had printed a value that is not finite, with its line, where all others had printed."""
    lines = [(one, [*_printed(one)]) for one in same]
    odd = [(one, line) for one, told in lines for line in told[-1:] if _NOT_FINITE.search(line)]
    return odd[0] if len(odd) == 1 and len(same) > 1 and all(told for _, told in lines) else None


def _printed(failure: Failure) -> Iterator[str]:
    """Lines of this rank, without that of the exception."""
    said = failure.raised.type if failure.raised is not None else ""
    yield from (
        line for line in (failure.process.printed if failure.process is not None else ()) if said not in line
    )
