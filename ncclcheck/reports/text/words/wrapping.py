"""Words in lines: broken at blanks alone, so that a host's name, a path or a command stays whole."""

from __future__ import annotations

import textwrap


def wrapped(words: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most that many columns, but for a longer word. first, rest: what lines begin with."""
    return textwrap.wrap(
        words, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
