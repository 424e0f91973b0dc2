"""What the job measured."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.bounds import Count, Word


class Times(Struct, frozen=True, kw_only=True):
    """Microseconds over iterations, each the maximum over ranks."""

    p50: float
    p95: float
    p99: float
    min: float
    max: float
    mean: float


class Expected(Struct, frozen=True, kw_only=True):
    """The range in which busbw should lie, GB/s, and what says so."""

    low: float
    high: float
    basis: str


class Collective(Struct, frozen=True, kw_only=True):
    """One row of the table. state: ok, wrong (result), skipped (with `reason`)."""

    op: Word
    bytes: int
    dtype: Word
    nodes: Count
    ranks: Count
    iterations: int = 0
    time_us: Times | None = None
    algbw_gb_s: float | None = None
    busbw_gb_s: float | None = None
    expected_gb_s: Expected | None = None
    correct: bool | None = None
    state: Literal["ok", "fail", "skipped"] = "ok"
    reason: str = ""


class WrongResult(Struct, frozen=True, kw_only=True):
    """The first wrong element that one rank found. Offsets count elements of the rank's result."""

    op: Word
    bytes: int
    dtype: Word
    rank: Count
    node: str
    wrong: int
    offset: int
    expected_bits: str
    got_bits: str


class Startup(Struct, frozen=True, kw_only=True):
    """Seconds, the slowest rank of each."""

    import_: float = field(name="import")
    rendezvous: float
    init: float
    first_collective: float
