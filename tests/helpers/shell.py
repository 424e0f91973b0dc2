"""What a shell would read in a line as its own, and not as part of a quoted word."""

from __future__ import annotations


class Unbalanced(ValueError):
    """A quote that nobody closes."""


def exposed(line: str) -> str:
    """The line without what stands in single quotes or behind a backslash; comments count, for zsh runs them."""
    kept, at, double = [], 0, False
    while at < len(line):
        here = line[at]
        if here == "\\":
            at += 2
        elif here == "'" and not double:
            end = line.find("'", at + 1)
            if end < 0:
                raise Unbalanced(line)
            at = end + 1
        else:
            double ^= here == '"'
            kept.append(here)
            at += 1
    if double:
        raise Unbalanced(line)
    return "".join(kept)
