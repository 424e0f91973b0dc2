"""What a sample looks like, and whether samples stack."""

from __future__ import annotations

from msgspec import Struct


class Structure(Struct, frozen=True, kw_only=True):
    """What a sample looks like, and whether samples stack."""
