"""Findings about streams (IterableDataset) that ranks and workers read: for DAT016."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts.data import Sharding
from ncclcheck.probes.facts.data.sharding import Stream
from ncclcheck.reports.findings import Evidence, Finding, Where, fail, fine, note, seen, warn
from ncclcheck.reports.sharded import by_stream, joined


def of_stream(node: str, held: Sharding) -> Iterator[Finding]:
    """Samples of a stream that several ranks or workers read, or none."""
    stream = held.stream
    if stream is None or stream.unjudged:
        return
    bad = False
    if held.ranks > 1 and stream.between_ranks >= held.ranks:
        yield _ranks_repeat(node, held, stream)
        bad = True
    if 2 * stream.between_workers >= stream.compared > 0:
        yield _workers_repeat(node, held, stream)
        bad = True
    lost = max(stream.lost_to_workers if (stream.workers or 0) > 1 else 0, stream.lost_to_ranks or 0)
    if lost >= 2 * max(1, held.ranks):
        yield _lost(node, stream, lost)
        bad = True
    if not bad:
        yield fine(Where(node=node), f"no two of {held.ranks} ranks, and no two workers, read the same samples")


def _ranks_repeat(node: str, held: Sharding, stream: Stream) -> Finding:
    told = f"{stream.between_ranks} of {stream.compared} samples of the stream are read by every rank"
    why = "All GPUs do the work of one. Accelerate shares a stream out itself; Lightning does not."
    if held.wanted < 2:
        return note(
            Where(node=node), f"{told}: right for this job of one rank, not for more", why=why, fix=by_stream()
        )
    return warn(Where(node=node), told, why=why, owner="job", evidence=_evidence(stream), fix=by_stream())


def _workers_repeat(node: str, held: Sharding, stream: Stream) -> Finding:
    told = f"two workers of a rank read the same {stream.between_workers // max(1, held.ranks)} samples"
    why = "Each sample comes as many times an epoch as there are workers."
    if stream.workers is None or stream.workers < 2:
        has = "no loader was given" if stream.workers is None else f"this loader has {stream.workers} workers"
        return note(Where(node=node), f"{told}; {has}", why=why, fix=by_stream())
    return fail(
        Where(node=node),
        f"{told}: the stream is not shared out among workers",
        why=why,
        owner="job",
        evidence=_evidence(stream),
        fix=by_stream(),
    )


def _lost(node: str, stream: Stream, lost: int) -> Finding:
    by_ranks = (stream.lost_to_ranks or 0) >= lost
    whole = stream.whole if by_ranks and stream.whole is not None else sum(stream.items)
    return fail(
        Where(node=node),
        f"{lost} of {whole} samples of the stream are read by no {'rank' if by_ranks else 'worker'}",
        why="They are never learned from; nothing else tells of it.",
        owner="job",
        evidence=_evidence(stream),
        fix=by_stream(),
    )


def _evidence(stream: Stream) -> list[Evidence]:
    leaves = ", ".join(name or "the sample" for name in stream.told_by)
    return [
        seen("samples a rank", f"without workers {joined(stream.items)}, with two {joined(stream.worker_items)}"),
        seen("told apart by", leaves),
    ]
