"""What groups of nodes measured that ran a collective of their own, apart from the world."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Whole

Members = Annotated[list[str], Meta(max_length=100_000)]


class GroupTime(Struct, frozen=True, kw_only=True):
    """One all_reduce among some nodes, with all of their ranks; the groups of a round run at the same time.

    bytes: of a rank's buffer. busbw_gb_s: of the better of two batches, by its slowest rank.
    timed_out: nothing had arrived in time; failed: an error of the transport, or a wrong sum (`reason`).
    """

    nodes: Members
    ranks: Count
    round: Count
    bytes: Whole = 0
    busbw_gb_s: Amount | None = None
    state: Literal["ok", "timed_out", "failed"] = "ok"
    reason: str = ""
