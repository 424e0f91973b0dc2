"""Whether emulated ranks mean the same sample by the same index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ncclcheck.probes.dataloader.views import RankView
from ncclcheck.probes.facts.data.sharding import Account, DifferingSample, IndexMap, ReadBy

_MOST_EXAMPLES = 5  # in a finding, the rest is counted: chosen
_EACH = 2  # so often does each class occur on the average; values drawn at random are not one for one
_POWER = 8  # so many samples in common are expected where both ranks hold the same ones

Key = tuple[str, ...]


def index_map(views: Sequence[RankView]) -> IndexMap:
    """Every rank beside rank 0. A leaf that tells samples apart and agrees everywhere settles it."""
    maps = [_beside(views[0], view) for view in views[1:]]
    lengths = [view.length for view in views if view.length is not None]
    return IndexMap(
        compared=max((mapping.compared for mapping in maps), default=0),
        differing=max((mapping.differing for mapping in maps), default=0),
        moved=max((mapping.moved for mapping in maps), default=0),
        own=any(mapping.own for mapping in maps),
        relabelled=any(mapping.relabelled for mapping in maps),
        lengths=lengths,
        examples=[example for mapping in maps for example in mapping.examples][:_MOST_EXAMPLES],
    )


def by_content(views: Sequence[RankView], whole: int | None) -> Account | None:
    """Datasets that the ranks hold parts of: samples in common, by what they hold. None: too few were read."""
    leaves = _leaves(views)
    distinct = [_told_apart(view, leaves) for view in views]
    common = Counter(key for keys in distinct for key in keys)
    shared = [key for key, count in common.items() if count > 1]
    lengths = [view.length for view in views]
    if None in lengths or not leaves or (not shared and not _would_show(views, distinct)):
        return None
    read = sum(length or 0 for length in lengths)
    different = read - len(shared)
    return Account(
        by="content", there=different if whole is None else whole, read=read, distinct=different,
        shared=len(shared), examples=[_reader(key, views, distinct) for key in shared[:_MOST_EXAMPLES]],
    )  # fmt: skip


def _beside(first: RankView, other: RankView) -> IndexMap:
    indices = [index for index in first.content if index in other.content]
    leaves = [leaf for leaf in _leaves((first, other)) if _tells(first, indices, leaf)]
    differing = [i for i in indices if any(_held(first, i, leaf) != _held(other, i, leaf) for leaf in leaves)]
    settled = any(all(_held(first, i, leaf) == _held(other, i, leaf) for i in indices) for leaf in leaves)
    if renamed := [leaf for leaf in _leaves((first, other)) if settled and _renamed(first, other, indices, leaf)]:
        return _relabelled(first, other, indices, renamed)
    if settled or not differing:
        return IndexMap(compared=len(indices) if leaves else 0)
    distinct = [_told_apart(view, leaves) for view in (first, other)]
    places = {index: distinct[0].get(_key(other, index, leaves)) for index in differing}
    moved = [index for index, place in places.items() if place is not None and place != index]
    shown = sorted(moved or differing, key=lambda index: index not in first.briefs)
    return IndexMap(
        compared=len(indices), differing=len(differing), moved=len(moved),
        own=not moved and _would_show((first, other), distinct),
        examples=[_example(first, other, i, leaves, places[i]) for i in shown[:_MOST_EXAMPLES]],
    )  # fmt: skip


def _renamed(first: RankView, other: RankView, indices: list[int], leaf: str) -> bool:
    """Whether each value of one rank is one other value there, and each occurs several times, as classes do."""
    pairs = {(_held(first, index, leaf), _held(other, index, leaf)) for index in indices}
    ones, others = {label for label, _ in pairs}, {alias for _, alias in pairs}
    one_for_one = len(ones) == len(others) == len(pairs) > 1
    return one_for_one and any(label != alias for label, alias in pairs) and len(indices) >= _EACH * len(pairs)


def _relabelled(first: RankView, other: RankView, indices: list[int], leaves: list[str]) -> IndexMap:
    differing = [i for i in indices if _held(first, i, leaves[0]) != _held(other, i, leaves[0])]
    shown = sorted(differing, key=lambda index: index not in first.briefs)[:_MOST_EXAMPLES]
    return IndexMap(
        compared=len(indices), differing=len(differing), relabelled=True,
        examples=[_example(first, other, index, leaves, None) for index in shown],
    )  # fmt: skip


def _example(
    first: RankView, other: RankView, index: int, leaves: list[str], there: int | None
) -> DifferingSample:
    leaf = next(leaf for leaf in leaves if _held(first, index, leaf) != _held(other, index, leaf))
    own, theirs = (view.briefs.get(index, {}).get(leaf) or _held(view, index, leaf) for view in (first, other))
    return DifferingSample(index=index, rank=other.rank, leaf=leaf, one=own, other=theirs, there=there)


def _would_show(views: Sequence[RankView], distinct: list[dict[Key, int]]) -> bool:
    """Whether enough was read of both that samples in common could not have been missed."""
    own, theirs = (len(keys) for keys in distinct[:2])
    return own * theirs >= _POWER * max(1, views[0].length or 0) or own == views[0].length


def _tells(view: RankView, indices: list[int], leaf: str) -> bool:
    return len({_held(view, index, leaf) for index in indices}) >= max(2, min(3, len(indices)))


def _leaves(views: Sequence[RankView]) -> list[str]:
    """Leaves that are steady on all of these ranks."""
    labels_of = [dict.fromkeys(leaf for leaves in view.content.values() for leaf in leaves) for view in views]
    return [leaf for leaf in labels_of[0] if all(leaf in labels for labels in labels_of[1:])] if labels_of else []


def _told_apart(view: RankView, leaves: list[str]) -> dict[Key, int]:
    """Samples that occur once on this rank, and their indices."""
    keys = {index: _key(view, index, leaves) for index in view.content}
    counts = Counter(keys.values())
    return {key: index for index, key in keys.items() if counts[key] == 1}


def _key(view: RankView, index: int, leaves: list[str]) -> Key:
    return tuple(_held(view, index, leaf) for leaf in leaves)


def _held(view: RankView, index: int, leaf: str) -> str:
    return view.content[index].get(leaf, "")


def _reader(key: Key, views: Sequence[RankView], distinct: list[dict[Key, int]]) -> ReadBy:
    by = [view.rank for view, keys in zip(views, distinct, strict=True) if key in keys]
    index = next(keys[key] for keys in distinct if key in keys)
    return ReadBy(sample=f"index {index} of rank {by[0]}", by=by)
