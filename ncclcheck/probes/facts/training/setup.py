"""What was trained."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ncclcheck.probes.facts.guard.bounds import Count, Whole


class Setup(Struct, frozen=True, kw_only=True):
    """The model and how it was trained. batch: samples a rank and step; parameters: elements of all of them."""

    model: str
    data: str
    strategy: Literal["ddp", "fsdp", "zero3"]
    precision: Literal["fp32", "bf16", "fp16"]
    steps: Count
    batch: Count
    accumulate: Count = 1
    find_unused: bool = False
    parameters: Whole = 0
