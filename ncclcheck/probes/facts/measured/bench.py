"""What the job measured."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Bits, Count, Whole, Word


class Times(Struct, frozen=True, kw_only=True):
    """Microseconds over iterations, each the maximum over ranks.

    median_low, median_high: the 95 % confidence interval of the median; null below six iterations, and in older
    files.
    """

    p50: Amount
    p95: Amount
    p99: Amount
    min: Amount
    max: Amount
    mean: Amount
    median_low: Amount | None = None
    median_high: Amount | None = None


class Expected(Struct, frozen=True, kw_only=True):
    """The range in which busbw should lie, GB/s, and what says so."""

    low: Amount
    high: Amount
    basis: str


class Fit(Struct, frozen=True, kw_only=True):
    """Time = latency + size / bandwidth, as the rows of one operation say.

    Errors of the line are shares of a row's time; last_error is that at the largest size.
    """

    op: Word
    sizes: Count
    latency_us: Amount
    busbw_gb_s: Amount
    median_error: Amount
    worst_error: Amount
    last_error: Amount


class Expectation(Struct, frozen=True, kw_only=True):
    """What follows from rows and facts; worked out anew whenever a file is judged.

    basis: what carries the data and how much that is; reason: why no bandwidth is expected.
    """

    fits: list[Fit] = field(default_factory=list)
    basis: str = ""
    reason: str = ""


class Collective(Struct, frozen=True, kw_only=True):
    """One row of the table. state: ok, wrong (result), skipped (with `reason`)."""

    op: Word
    bytes: Whole
    dtype: Word
    nodes: Count
    ranks: Count
    iterations: Whole = 0
    time_us: Times | None = None
    algbw_gb_s: Amount | None = None
    busbw_gb_s: Amount | None = None
    expected_gb_s: Expected | None = None
    correct: bool | None = None
    state: Literal["ok", "fail", "skipped"] = "ok"
    reason: str = ""


class WrongResult(Struct, frozen=True, kw_only=True):
    """Wrong elements that one rank found in a result. Offsets count elements of that result.

    The bits are those of the first one. iteration: of a row the first or the last one, which are checked; of a
    soak its round. last: the offset of the last wrong element.
    pattern: `bit`, one bit of one element; `same bit`, one bit, the same in several elements; `element`, one
    element; `chunk`, most of those from the first to the last; `piece`, as much as one rank sends; `scattered`,
    anything else; empty in older files.
    source_rank: from whom the wrong elements come; in a reduction whose contribution explains them all, being
    missing, counted twice or changed in a bit. null where nobody can tell.
    """

    op: Word
    bytes: Whole
    dtype: Word
    rank: Count
    node: str
    wrong: Whole
    offset: Whole
    expected_bits: Bits
    got_bits: Bits
    iteration: Count = 0
    soak: bool = False
    last: Whole | None = None
    pattern: Literal["", "bit", "same bit", "element", "chunk", "piece", "scattered"] = ""
    source_rank: Count | None = None
    contribution: Literal["", "missing", "doubled", "changed"] = ""


class Soak(Struct, frozen=True, kw_only=True):
    """How far the soak came: rounds through all operations, each with data of its own.

    results: how many were checked on all ranks, wrong: on how many of them any rank found something wrong.
    """

    asked_s: Amount
    seconds: Amount
    rounds: Whole
    results: Whole
    wrong: Whole
    bytes: Whole


class Startup(Struct, frozen=True, kw_only=True):
    """Seconds, the slowest rank of each."""

    import_: Amount = field(name="import")
    rendezvous: Amount
    init: Amount
    first_collective: Amount
