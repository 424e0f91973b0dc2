"""Where the time of a training step goes, rank by rank."""

from __future__ import annotations

from msgspec import Struct

from ncclcheck.probes.facts.bounds import Count


class StepTimes(Struct, frozen=True, kw_only=True):
    """The median times of one rank's steps."""

    rank: Count
    node: str


class Side(Struct, frozen=True, kw_only=True):
    """What was measured beside the steps."""
