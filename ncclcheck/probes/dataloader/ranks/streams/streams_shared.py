"""Streams of several ranks and workers beside each other: what was read twice, and what by nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ncclcheck.probes.dataloader.ranks.streams.streams_read import stable
from ncclcheck.probes.dataloader.views import RankView, StreamPass
from ncclcheck.probes.facts.data.sharding import ReadBy, Stream

_MOST_EXAMPLES = 5  # in a finding, the rest is counted: chosen
_LEAST = 4  # samples that must be comparable: fewer may be equal by chance, labels above all; chosen

Key = tuple[str, ...]


def stream(views: Sequence[RankView], whole: RankView | None) -> Stream:
    """Samples are told apart by leaves that do not change from reading to reading."""
    alone = [view.passes["alone"] for view in views]
    workers = [view.passes["workers"] for view in views if "workers" in view.passes]
    seen = Stream(
        items=[len(reading.items) for reading in alone],
        worker_items=[len(worker.items) for worker in workers],
        by_worker=[workers[0].workers.count(number) for number in range(workers[0].of)] if workers else [],
        ended=all(reading.ended for reading in (*alone, *workers)),
        workers=views[0].workers,
        dry=views[0].dry,
    )
    leaves = _told_by(views) or _told_by([whole] if whole is not None else [])
    distinct = [_told_apart(reading, leaves) for reading in alone]
    compared = min((len(keys) for keys in distinct), default=0)
    if not leaves or compared < max(_LEAST, 0.3 * min(seen.items, default=0)):
        why = "its samples cannot be told apart: they change from reading to reading, or are alike"
        return replace(seen, unjudged=why)
    comparison = _compared(seen, alone, distinct, workers, leaves, whole)
    return replace(seen, told_by=leaves, compared=compared, **comparison)


def _compared(
    seen: Stream,
    alone: Sequence[StreamPass],
    distinct: list[set[Key]],
    workers: Sequence[StreamPass],
    leaves: list[str],
    whole: RankView | None,
) -> dict[str, object]:
    known = set().union(*distinct)
    by_worker = [_by_worker(worker, leaves, known) for worker in workers]
    together = [set().union(*keys.values()) for keys in by_worker]
    twice = max((_in_several(distinct), _in_several(together)), key=len)
    again = [key for keys in by_worker for key in _in_several(keys.values())]
    comparison: dict[str, object] = {
        "between_ranks": len(twice),
        "between_workers": len(again),
        "lost_to_workers": len(known.difference(*together)) if seen.ended and workers else 0,
        "examples": [_reader(key, distinct) for key in twice[:_MOST_EXAMPLES]],
        "groups": _groups([_keys(reading, leaves) for reading in alone]),
    }
    if not seen.ended:
        lists = [_keys(reading, leaves) for reading in alone]
        comparison["ranks_alike"] = _in_one_order(lists, len(twice))
        by_number = sorted(
            (_keys(worker, leaves, n) for worker in workers[:1] for n in range(worker.of)), key=len
        )[-2:]
        comparison["workers_alike"] = _in_one_order(by_number, len(again) // max(1, len(workers)))
    if whole is not None and seen.ended and whole.passes["alone"].ended:
        everything = _told_apart(whole.passes["alone"], leaves)
        comparison["whole"] = len(whole.passes["alone"].items)
        comparison["lost_to_ranks"] = len(everything - known)
    return comparison


def _keys(reading: StreamPass, leaves: list[str], worker: int | None = None) -> list[Key]:
    """In their order, of all or of one worker."""
    pairs = zip(reading.items, reading.workers, strict=True)
    return [_key(item, leaves) for item, number in pairs if worker is None or number == worker]


def _in_one_order(lists: Sequence[list[Key]], shared: int) -> bool:
    """Whether at least half of what two of them share stands at one place in both."""
    if len(lists) < 2:
        return True
    return 2 * sum(first == other for first, other in zip(lists[0], lists[1], strict=False)) >= shared


def _groups(lists: Sequence[list[Key]]) -> list[list[int]]:
    """Of ranks that read the same in one order; none where all do, or no two do."""
    groups: list[list[int]] = []
    for rank, mine in enumerate(lists):
        like = (group for group in groups if _begin_alike(lists[group[0]], mine))
        if (match := next(like, None)) is not None:
            match.append(rank)
        else:
            groups.append([rank])
    return groups if 1 < len(groups) < len(lists) else []


def _begin_alike(keys: list[Key], other: list[Key]) -> bool:
    """As far as both were read."""
    pairs = [*zip(keys, other, strict=False)]
    return len(pairs) >= _LEAST and all(first == second for first, second in pairs)


def _told_by(views: Sequence[RankView]) -> list[str]:
    each = [stable(view.passes["alone"], view.passes["again"]) for view in views]
    return [leaf for leaf in each[0] if all(leaf in labels for labels in each)] if each else []


def _told_apart(reading: StreamPass, leaves: list[str]) -> set[Key]:
    """Of a stream that ended, the samples that occur once; of one without an end, all."""
    counts = Counter(_key(item, leaves) for item in reading.items)
    return {key for key, count in counts.items() if count == 1 or not reading.ended}


def _by_worker(reading: StreamPass, leaves: list[str], known: set[Key]) -> dict[int, set[Key]]:
    by_worker: dict[int, set[Key]] = {0: set(), 1: set()}
    for item, worker in zip(reading.items, reading.workers, strict=True):
        if (key := _key(item, leaves)) in known:
            by_worker.setdefault(worker, set()).add(key)
    return by_worker


def _in_several(sets: Iterable[set[Key]]) -> list[Key]:
    counts = Counter(key for keys in sets for key in keys)
    return [key for key, count in counts.items() if count > 1]


def _key(item: dict[str, str], leaves: list[str]) -> Key:
    return tuple(item.get(leaf, "") for leaf in leaves)


def _reader(key: Key, distinct: list[set[Key]]) -> ReadBy:
    return ReadBy(sample=" ".join(key)[:60], by=[rank for rank, keys in enumerate(distinct) if key in keys])
