"""What short jobs measured in turn, with one setting and without it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Whole, Word

# The name stands in lines to paste.
Variable = Annotated[str, Meta(pattern="^(NCCL|GLOO|TORCH_NCCL)_[A-Z0-9_]{1,80}$")]


class TrialRow(Struct, frozen=True, kw_only=True):
    """One operation at one size: the median of each job, in microseconds, in the order of the pairs.

    speedup: how many times as fast with the setting, with its interval; these and the verdict are worked out anew
    whenever a file is judged.
    """

    op: Word
    bytes: Whole
    without_us: list[Amount]
    with_us: list[Amount]
    speedup: Amount | None = None
    low: Amount | None = None
    high: Amount | None = None
    verdict: Literal["gains", "loses", "same", "unknown"] = "unknown"


class Trial(Struct, frozen=True, kw_only=True):
    """The setting that was tried. value: null takes the variable away. pairs: of jobs that both ran to their end.

    failed: how the job with it ended, where that was otherwise than well; those without it did end well.
    """

    variable: Variable
    value: str | None
    pairs: Count
    rows: list[TrialRow] = field(default_factory=list)
    failed: str = ""
