"""What samples contain, read in several orders and by several workers at once."""

from __future__ import annotations

from msgspec import Struct


class Content(Struct, frozen=True, kw_only=True):
    """What samples contain, read in several orders and by several workers at once."""
