"""What the checks of the training run saw."""

from __future__ import annotations

from msgspec import Struct


class Checks(Struct, frozen=True, kw_only=True):
    """One aspect a field; None: not looked at."""
