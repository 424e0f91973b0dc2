"""Findings about streams (IterableDataset) that ranks and workers read: for DAT016."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ncclcheck.probes.facts.data import Made, Sharding
from ncclcheck.probes.facts.data.sharding import Stream
from ncclcheck.reports.judgement.findings import Evidence, Finding, Where, fail, fine, note, seen, warn, you
from ncclcheck.reports.subjects.data import own_names
from ncclcheck.reports.subjects.data.sharded import (
    by_local_rank,
    by_stream,
    in_more_parts,
    joined,
    shared_out_once,
)

_ENDLESS = "As it should be where the stream has no end and each reader shuffles it for itself, as llama2.c does."


def of_stream(
    node: str, sharding: Sharding, frameworks: Collection[str] = (), made: Made | None = None
) -> Iterator[Finding]:
    """Samples of a stream that several ranks or workers read, or none.

    frameworks: imported by the user's module; one of them may share the samples out among the ranks.
    made: what the factory gave.
    """
    stream, dataset = sharding.stream, made.dataset if made else ""
    if stream is None or stream.unjudged:
        return
    bad = False
    if stream.groups:
        yield _some_ranks_repeat(node, sharding, stream)
        bad = True
    elif stream.own_orders:
        yield _own_orders(node, stream, made)
        return
    elif sharding.ranks > 1 and stream.between_ranks >= sharding.ranks:
        yield _ranks_repeat(node, sharding, stream, frameworks, dataset)
        bad = True
    if _repeats_in_workers(stream):
        yield _workers_repeat(node, sharding, stream, dataset)
        bad = True
    lost = max(stream.lost_to_workers if (stream.workers or 0) > 1 else 0, stream.lost_to_ranks or 0)
    if lost >= 2 * max(1, sharding.ranks):
        yield _lost(node, stream, lost, dataset)
        bad = True
    if not bad and (idle := [number for number, count in enumerate(stream.by_worker) if not count]):
        yield _idle(node, stream, idle, dataset)
        bad = True
    if not bad:
        yield fine(
            Where(node=node), f"no two of {sharding.ranks} ranks, and no two workers, read the same samples"
        )


def _ranks_repeat(
    node: str, sharding: Sharding, stream: Stream, frameworks: Collection[str], dataset: str
) -> Finding:
    what = f"{stream.between_ranks} of {stream.compared} samples of the stream are read by every rank"
    why = "All GPUs do the work of one. Accelerate shares a stream out itself; Lightning does not."
    fix = by_stream(dataset, workers=_repeats_in_workers(stream))
    if sharding.wanted < 2:
        return note(
            Where(node=node),
            f"{what}: right for this job of one rank, not for more",
            why=why,
            fix=fix,
        )
    if not stream.ended and not stream.ranks_alike:
        return note(Where(node=node), f"{what}, in other orders", why=_ENDLESS)
    make = warn if frameworks else fail
    return make(Where(node=node), what, why=why, owner="job", evidence=_evidence(stream), fix=fix)


def _own_orders(node: str, stream: Stream, made: Made | None) -> Finding:
    lines = own_names.rewritten(made, "order") if made else []
    lost = f"; {stream.lost_to_ranks} are read by none" if stream.lost_to_ranks else ""
    return fail(
        Where(node=node),
        f"{stream.between_ranks} samples of the stream are read by several ranks{lost}: each rank takes its part "
        "of a random order of its own",
        why="The order is drawn without a seed, and is another on each rank (drawn in __iter__: in each worker): "
        "the parts overlap and leave out as much as by chance. With one seed on all ranks no sample came twice.",
        owner="job",
        evidence=_evidence(stream),
        fix=[
            you(
                "Give the order a seed that all ranks share.",
                *(lines or ["random.Random(seed + epoch).shuffle(shards)"]),
            )
        ],
    )


def _some_ranks_repeat(node: str, sharding: Sharding, stream: Stream) -> Finding:
    """Each part goes to several ranks, as where the number of the rank on its node chooses the part."""
    who = ", ".join(joined(group) for group in stream.groups if len(group) > 1)
    local = by_local_rank(sharding)
    return (fail if local else warn)(
        Where(node=node),
        f"ranks {who} read the same samples of the stream, other ranks read others",
        why="LOCAL_RANK begins at 0 on every node: ranks with the same one take the same part, and the parts of "
        "the others are read by nobody."
        if local
        else "Meant so for ranks that hold parts of one model; else these ranks do the work of one.",
        owner="job",
        evidence=_evidence(stream),
        fix=local or by_stream(),
    )


def _workers_repeat(node: str, sharding: Sharding, stream: Stream, dataset: str) -> Finding:
    what = f"workers of one rank read the same {stream.between_workers // max(1, sharding.ranks)} samples"
    why = "Each sample comes as many times an epoch as there are workers."
    fix = by_stream(dataset, ranks=not 1 < sharding.ranks > stream.between_ranks)
    if stream.workers is None or stream.workers < 2:
        has = "no loader was given" if stream.workers is None else f"this loader has {stream.workers} workers"
        return note(Where(node=node), f"{what}; {has}", why=why, fix=fix)
    if not stream.ended and not stream.workers_alike:
        return note(Where(node=node), f"{what}, in other orders", why=_ENDLESS)
    return fail(
        Where(node=node),
        f"{what}: the stream is not shared out among workers",
        why=why,
        owner="job",
        evidence=_evidence(stream),
        fix=fix,
    )


def _repeats_in_workers(stream: Stream) -> bool:
    read = stream.compared if stream.ended else min(stream.compared, sum(stream.worker_items) // 2)
    return 2 * stream.between_workers >= read > 0


def _lost(node: str, stream: Stream, lost: int, dataset: str) -> Finding:
    by_ranks = (stream.lost_to_ranks or 0) >= lost
    whole = stream.whole if by_ranks and stream.whole is not None else sum(stream.items)
    return fail(
        Where(node=node),
        f"{lost} of {whole} samples of the stream are read by no {'rank' if by_ranks else 'worker'}",
        why="They are never learned from; nothing else shows it.",
        owner="job",
        evidence=_evidence(stream),
        fix=by_stream(dataset) if dataset.startswith(("datasets.", "webdataset.")) else [shared_out_once()],
    )


def _idle(node: str, stream: Stream, idle: list[int], dataset: str) -> Finding:
    of = len(stream.by_worker)
    what = f"of {of} workers {joined(idle)} read no sample: the stream has fewer parts than workers"
    if stream.workers is None or stream.workers < 2 or not stream.ended:
        return note(Where(node=node), what)
    return warn(
        Where(node=node),
        what,
        why="A part (a file, a shard) is read by one worker; the others have nothing to do, and loading is as "
        f"slow as with {of - len(idle)}.",
        owner="job",
        evidence=[seen("samples by worker of rank 0", joined(stream.by_worker)), *_shards(dataset)],
        fix=[in_more_parts(of - len(idle), dataset)],
    )


def _shards(dataset: str) -> list[Evidence]:
    return [seen("a part of it", "dataset.num_shards")] if dataset.startswith("datasets.") else []


def _evidence(stream: Stream) -> list[Evidence]:
    leaves = ", ".join(name or "the sample" for name in stream.told_by)
    return [
        seen(
            "samples a rank", f"without workers {joined(stream.items)}, with workers {joined(stream.worker_items)}"
        ),
        seen("samples compared by", leaves),
    ]
