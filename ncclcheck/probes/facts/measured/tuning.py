"""What `tune` measured: settings in turn with none, each operation and size of the job."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Whole
from ncclcheck.probes.facts.measured.trial import TrialRow

# The name stands in lines to paste.
Tunable = Annotated[str, Meta(pattern="^((NCCL|GLOO|TORCH_NCCL)_[A-Z0-9_]{1,80}|OMP_NUM_THREADS)$")]


class Candidate(Struct, frozen=True, kw_only=True):
    """One setting that may matter here. value: null takes the variable away."""

    variable: Tunable
    value: str | None
    why: str = ""


class Tried(Struct, frozen=True, kw_only=True):
    """Settings that were tried together. pairs: of jobs without and with them that both ran to their end.

    failed: how the job with them ended, where that was otherwise than well.
    """

    settings: Annotated[list[Candidate], Meta(max_length=64)]
    pairs: Count = 0
    rows: list[TrialRow] = field(default_factory=list)
    failed: str = ""


class Forecast(Struct, frozen=True, kw_only=True):
    """What NCCL expected of a message of this size, in microseconds, from its own TUNING lines."""

    bytes: Whole
    time_us: Amount
    algorithm: Count
    protocol: Count


class Tuning(Struct, frozen=True, kw_only=True):
    """sizes_from: where the operations and sizes come from. comparisons: for which intervals hold together.

    whole: what gained, all of it together, in pairs of its own. stopped: why not all pairs were run.
    """

    sizes_from: str = ""
    comparisons: Count = 1
    tried: list[Tried] = field(default_factory=list)
    whole: Tried | None = None
    forecasts: list[Forecast] = field(default_factory=list)
    stopped: str = ""
