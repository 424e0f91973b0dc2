"""Samples a second by number of workers."""

from __future__ import annotations

from msgspec import Struct


class Speed(Struct, frozen=True, kw_only=True):
    """Samples a second by number of workers."""
