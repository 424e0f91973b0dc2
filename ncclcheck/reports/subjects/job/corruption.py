"""Wrong results in plain words: where, when, in which pattern, and from whom they came."""

from __future__ import annotations

import re

from ncclcheck.probes.facts import Cluster, WrongResult
from ncclcheck.reports.judgement.findings import Where
from ncclcheck.reports.text.words.fold import fold_names, size

_ALIGNED = 64  # bytes: a chunk begins at least there where a library copies in chunks
_CONTRIBUTION = {"missing": "is missing", "doubled": "was counted twice", "changed": "was changed in one bit"}


def grouped(cluster: Cluster) -> list[list[WrongResult]]:
    """The same place in the same operation: one finding, over all its sizes and the rounds of a soak too."""
    groups: dict[tuple[object, ...], list[WrongResult]] = {}
    for result in cluster.measurements.wrong:
        at = place(cluster, result)
        groups.setdefault((at.node, at.rank, result.op, result.dtype), []).append(result)
    return list(groups.values())


def place(cluster: Cluster, wrong: WrongResult) -> Where:
    """The rank whose contribution is wrong where it is known, else the one that saw the wrong result."""
    nodes = {rank.rank: rank.node for rank in cluster.run.ranks}
    source = wrong.source_rank
    if source is not None and wrong.contribution and source in nodes:
        return Where(node=nodes[source], rank=source)
    peer = nodes.get(source) if source is not None and source != wrong.rank else None
    return Where(node=wrong.node, rank=wrong.rank, peer=peer if peer != wrong.node else None)


def what(alike: list[WrongResult]) -> str:
    """Operation, iteration, pattern, offset, bits and source of the first; how often it came again."""
    first = alike[0]
    return (
        f"{first.op} of {size(first.bytes)} {first.dtype}{_when(first)}{_more(alike)}{_seen_by(alike)}: "
        f"{_pattern(first)} at offset {first.offset}: bits {first.got_bits}, expected {first.expected_bits}"
        f"{_source(first)}"
    )


def _more(alike: list[WrongResult]) -> str:
    """The same row may come again in a soak, and other sizes may be wrong too."""
    sizes = sorted({result.bytes for result in alike} - {alike[0].bytes})
    others = f"{', '.join(map(size, sizes[:3]))}{f' and {len(sizes) - 3} more' if len(sizes) > 3 else ''}"
    times = f", and at least {len(alike) - 1} times more" if len(alike) > 1 else ""
    return times + (f" (also of {others})" if sizes else "")


def _seen_by(alike: list[WrongResult]) -> str:
    """Who saw it, where that is not who did it."""
    ranks = sorted({result.rank for result in alike})
    if not alike[0].contribution:
        return ""
    return f" on rank{'s' if len(ranks) > 1 else ''} {fold_names(map(str, ranks)).strip('[]')}"


def _when(wrong: WrongResult) -> str:
    if not wrong.iteration:
        return ""
    return f", {'round' if wrong.soak else 'iteration'} {wrong.iteration}{' of the soak' if wrong.soak else ''}"


def _pattern(wrong: WrongResult) -> str:
    many = f"{wrong.wrong} wrong elements"
    last = wrong.offset if wrong.last is None else wrong.last
    match wrong.pattern:
        case "bit":
            return f"one bit of one element (bit {_bit(wrong)}) is wrong,"
        case "element":
            return "one element is wrong, in several bits,"
        case "same bit":
            return f"{many} up to {last}, always in bit {_bit(wrong)}, the first"
        case "chunk":
            return f"a chunk from element {wrong.offset} to {last}{_alignment(wrong, last)}, {many}, the first"
        case "piece":
            sender = f"from rank {wrong.source_rank}" if wrong.source_rank is not None else "of one rank"
            return f"all of the piece {sender}, {many}, the first"
        case "scattered":
            return f"{many} scattered up to {last}, the first"
        case _:
            return f"{many}, the first"


def _bit(wrong: WrongResult) -> int:
    return (int(wrong.expected_bits, 16) ^ int(wrong.got_bits, 16)).bit_length() - 1


def _alignment(wrong: WrongResult, last: int) -> str:
    digits = re.search(r"\d+$", wrong.dtype)
    item = int(digits[0]) // 8 if digits else 1
    ends = wrong.offset * item | (last + 1) * item
    aligned = ends & -ends
    length = size((last + 1 - wrong.offset) * item)
    return f" ({length}, aligned to {size(aligned)})" if aligned >= _ALIGNED else f" ({length}, not aligned)"


def _source(wrong: WrongResult) -> str:
    unwritten = len(wrong.got_bits) >= 6 and set(wrong.got_bits[2:].lower()) == {"a", "5"}
    never = "; nothing was ever written there" if unwritten and wrong.got_bits[2:4].lower() == "a5" else ""
    if wrong.source_rank is None:
        return never
    if wrong.contribution:
        return f"; the contribution of rank {wrong.source_rank} {_CONTRIBUTION[wrong.contribution]}"
    return f"{never}; it comes from rank {wrong.source_rank}"
