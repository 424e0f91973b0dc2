"""What the factory gave."""

from __future__ import annotations

from msgspec import Struct


class Made(Struct, frozen=True, kw_only=True):
    """What the factory gave."""
