"""What a wrong result looks like: which elements, in which pattern, and from whom they came."""

from __future__ import annotations

from typing import Literal

from ncclcheck.probes.facts import Collective, WrongResult
from ncclcheck.probes.job.operations import OPERATIONS, Operation, Ranks
from ncclcheck.probes.job.verify.exact import Mismatch

Pattern = Literal["bit", "same bit", "element", "chunk", "piece", "scattered"]

_DENSE = 0.5  # of a range: two different data agree in some elements by chance


def as_fact(
    row: Collective, mismatch: Mismatch, ranks: Ranks, node: str, iteration: int, *, soak: bool = False
) -> WrongResult:
    """The wrong result of this rank as a fact."""
    source, contribution = _source(OPERATIONS[row.op], mismatch, ranks)
    return WrongResult(
        op=row.op,
        bytes=row.bytes,
        dtype=row.dtype,
        rank=ranks.rank,
        node=node,
        wrong=mismatch.wrong,
        offset=mismatch.offset,
        expected_bits=mismatch.expected_bits,
        got_bits=mismatch.got_bits,
        iteration=iteration,
        soak=soak,
        last=mismatch.last,
        pattern=pattern(mismatch),
        source_rank=source,
        contribution=contribution,
    )


def pattern(mismatch: Mismatch) -> Pattern:
    """How the wrong elements lie."""
    one_bit = mismatch.flipped.bit_count() == 1
    if mismatch.wrong == 1:
        return "bit" if one_bit else "element"
    if one_bit:
        return "same bit"
    span = mismatch.last - mismatch.offset + 1
    if mismatch.wrong < _DENSE * span:
        return "scattered"
    if span < 0.9 * mismatch.piece or len(mismatch.pieces) > 1:
        return "chunk"
    return "piece"


def _source(
    op: Operation, mismatch: Mismatch, ranks: Ranks
) -> tuple[int | None, Literal["", "missing", "doubled", "changed"]]:
    if op.reduces:
        contribution = ranks.data.contributor(mismatch.sample) if mismatch.sample else None
        return contribution or (None, "")
    if op.sender == "piece":
        return (mismatch.pieces[0] if len(mismatch.pieces) == 1 else None), ""
    return (0 if op.sender == "root" else (ranks.rank - 1) % ranks.world), ""
