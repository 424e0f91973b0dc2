"""The shape of a sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Sign(NamedTuple):
    """One kind of line. pattern: searched for in the line without its prefixes; named groups become fields,
    but `me` and `self` the writer's rank, and `here` its host, where no prefix tells them.

    examples: lines that it must be found in, in the words of several versions. words: one of them, in lower case, is
    in every such line in any case; for patterns that hold no plain word in all their alternatives. often: sound
    logs are full of it, so that the first ones and now and then one are enough.
    """

    name: str
    pattern: str
    examples: tuple[str, ...]
    words: tuple[str, ...] = ()
    often: bool = False
    check: Callable[[str], bool] | None = None
    last: bool = False
