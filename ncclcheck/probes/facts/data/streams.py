"""The random streams of workers, epochs and ranks, as a real DataLoader shows them."""

from __future__ import annotations

from msgspec import Struct


class Streams(Struct, frozen=True, kw_only=True):
    """The random streams of workers, epochs and ranks, as a real DataLoader shows them."""
