"""What samples and workers take: descriptors, memory, shared memory."""

from __future__ import annotations

from msgspec import Struct


class Resources(Struct, frozen=True, kw_only=True):
    """What samples and workers take: descriptors, memory, shared memory."""
