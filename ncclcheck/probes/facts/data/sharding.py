"""Which rank reads which samples, epoch by epoch."""

from __future__ import annotations

from msgspec import Struct


class Sharding(Struct, frozen=True, kw_only=True):
    """Which rank reads which samples, epoch by epoch."""
