"""Checkpoints: written, reloaded, resumed from; and what a large model's would take."""

from __future__ import annotations

from msgspec import Struct


class Saves(Struct, frozen=True, kw_only=True):
    """One aspect a field; None: not looked at."""
