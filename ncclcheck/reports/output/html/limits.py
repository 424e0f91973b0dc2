"""How much of a large result a page shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_BYTES = 5_000_000  # of a page: chosen so that it can be mailed and opens at once


@dataclass(frozen=True)
class PageLimits:
    """blocks: findings of one state; places: of one finding, and its evidence; characters: of one text."""

    blocks: int
    places: int
    rows: int
    characters: int
    facts: int


LIMITS = (
    PageLimits(blocks=200, places=60, rows=2000, characters=20_000, facts=8000),
    PageLimits(blocks=100, places=20, rows=200, characters=2000, facts=2000),
    PageLimits(blocks=25, places=5, rows=25, characters=300, facts=200),
)


@dataclass(frozen=True)
class Shown(Generic[T]):
    """The first ones of many, and how many are left."""

    items: Sequence[T]
    left: int


def first(items: Sequence[T], most: int) -> Shown[T]:
    """At most so many."""
    return Shown(items[:most], max(0, len(items) - most))
