"""Streams of several ranks and workers beside each other: what was read twice, and what by nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ncclcheck.probes.dataloader.ranks.streams.streams_read import stable
from ncclcheck.probes.dataloader.views import Pass, View
from ncclcheck.probes.facts.data.sharding import Reader, Stream

_MOST_EXAMPLES = 5  # in a finding, the rest is counted: chosen
_LEAST = 4  # samples that must be comparable: fewer may be equal by chance, labels above all; chosen

Key = tuple[str, ...]


def stream(views: Sequence[View], whole: View | None) -> Stream:
    """Samples are told apart by leaves that do not change from reading to reading."""
    alone = [view.passes["alone"] for view in views]
    workers = [view.passes["workers"] for view in views if "workers" in view.passes]
    seen = Stream(
        items=[len(one.items) for one in alone],
        worker_items=[len(worker.items) for worker in workers],
        by_worker=[workers[0].workers.count(number) for number in range(workers[0].of)] if workers else [],
        ended=all(one.ended for one in (*alone, *workers)),
        workers=views[0].workers,
        dry=views[0].dry,
    )
    leaves = _told_by(views)
    distinct = [_told_apart(one, leaves) for one in alone]
    compared = min((len(keys) for keys in distinct), default=0)
    if not leaves or compared < max(_LEAST, 0.3 * min(seen.items, default=0)):
        why = "its samples cannot be told apart: they change from reading to reading, or are alike"
        return replace(seen, unjudged=why)
    found = _compared(seen, alone, distinct, workers, leaves, whole)
    return replace(seen, told_by=leaves, compared=compared, **found)


def _compared(
    seen: Stream,
    alone: Sequence[Pass],
    told: list[set[Key]],
    workers: Sequence[Pass],
    leaves: list[str],
    whole: View | None,
) -> dict[str, object]:
    known = set().union(*told)
    by_worker = [_by_worker(worker, leaves, known) for worker in workers]
    together = [set().union(*keys.values()) for keys in by_worker]
    twice = max((_in_several(told), _in_several(together)), key=len)
    again = [key for keys in by_worker for key in _in_several(keys.values())]
    found: dict[str, object] = {
        "between_ranks": len(twice),
        "between_workers": len(again),
        "lost_to_workers": len(known.difference(*together)) if seen.ended and workers else 0,
        "examples": [_reader(key, told) for key in twice[:_MOST_EXAMPLES]],
        "groups": _groups([_keys(one, leaves) for one in alone]),
    }
    if not seen.ended:
        lists = [_keys(one, leaves) for one in alone]
        found["ranks_alike"] = _in_one_order(lists, len(twice))
        by_number = sorted(
            (_keys(worker, leaves, n) for worker in workers[:1] for n in range(worker.of)), key=len
        )[-2:]
        found["workers_alike"] = _in_one_order(by_number, len(again) // max(1, len(workers)))
    if whole is not None and seen.ended and whole.passes["alone"].ended:
        everything = _told_apart(whole.passes["alone"], leaves)
        found["whole"] = len(whole.passes["alone"].items)
        found["lost_to_ranks"] = len(everything - known)
    return found


def _keys(one: Pass, leaves: list[str], worker: int | None = None) -> list[Key]:
    """In their order, of all or of one worker."""
    pairs = zip(one.items, one.workers, strict=True)
    return [_key(item, leaves) for item, number in pairs if worker is None or number == worker]


def _in_one_order(lists: Sequence[list[Key]], shared: int) -> bool:
    """Whether at least half of what two of them share stands at one place in both."""
    if len(lists) < 2:
        return True
    return 2 * sum(one == other for one, other in zip(lists[0], lists[1], strict=False)) >= shared


def _groups(lists: Sequence[list[Key]]) -> list[list[int]]:
    """Of ranks that read the same in one order; none where all do, or no two do."""
    groups: list[list[int]] = []
    for rank, mine in enumerate(lists):
        like = (group for group in groups if _begin_alike(lists[group[0]], mine))
        if (found := next(like, None)) is not None:
            found.append(rank)
        else:
            groups.append([rank])
    return groups if 1 < len(groups) < len(lists) else []


def _begin_alike(keys: list[Key], other: list[Key]) -> bool:
    """As far as both were read."""
    pairs = [*zip(keys, other, strict=False)]
    return len(pairs) >= _LEAST and all(first == second for first, second in pairs)


def _told_by(views: Sequence[View]) -> list[str]:
    each = [stable(view.passes["alone"], view.passes["again"]) for view in views]
    return [leaf for leaf in each[0] if all(leaf in labels for labels in each)] if each else []


def _told_apart(one: Pass, leaves: list[str]) -> set[Key]:
    """Of a stream that ended, the samples that occur once; of one without an end, all."""
    counts = Counter(_key(item, leaves) for item in one.items)
    return {key for key, count in counts.items() if count == 1 or not one.ended}


def _by_worker(one: Pass, leaves: list[str], known: set[Key]) -> dict[int, set[Key]]:
    found: dict[int, set[Key]] = {0: set(), 1: set()}
    for item, worker in zip(one.items, one.workers, strict=True):
        if (key := _key(item, leaves)) in known:
            found.setdefault(worker, set()).add(key)
    return found


def _in_several(sets: Iterable[set[Key]]) -> list[Key]:
    counts = Counter(key for keys in sets for key in keys)
    return [key for key, count in counts.items() if count > 1]


def _key(item: dict[str, str], leaves: list[str]) -> Key:
    return tuple(item.get(leaf, "") for leaf in leaves)


def _reader(key: Key, told: list[set[Key]]) -> Reader:
    return Reader(sample=" ".join(key)[:60], by=[rank for rank, one in enumerate(told) if key in one])
