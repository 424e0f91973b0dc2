"""Faults that no pair shows: the whole fails, and which groups of nodes do."""

from __future__ import annotations

from ncclcheck.reports.scale.search import LEAST, Answer, answered, next_groups
from ncclcheck.reports.scale.suspicion import pairs_are_sound, whole_has_failed, whole_is_bad

__all__ = [
    "LEAST",
    "Answer",
    "answered",
    "next_groups",
    "pairs_are_sound",
    "whole_has_failed",
    "whole_is_bad",
]
