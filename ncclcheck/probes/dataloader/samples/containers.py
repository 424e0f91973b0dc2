"""Large containers of Python objects below a dataset: what reading copies in every worker."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ncclcheck.probes.dataloader.samples.graph import walk
from ncclcheck.probes.facts.data.resources import ObjectContainer

_LARGE = 4096  # items
_MOST = 8  # containers in a finding, the largest: chosen
_SAMPLED = 64  # items that are weighed; the sum is extrapolated: chosen
_INSIDE = 16  # parts of one item that are weighed: chosen


def large(dataset: Any) -> list[ObjectContainer]:
    """The largest first."""
    containers = [_measured(path, value) for path, value in walk(dataset) if _is_large(value)]
    return sorted(containers, key=lambda container: -container.bytes)[:_MOST]


def _is_large(value: Any) -> bool:
    if isinstance(value, list | tuple | dict | set | frozenset | deque):
        return len(value) >= _LARGE
    return _is_object_array(value) and value.size >= _LARGE


def _is_object_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.hasobject


def _measured(path: str, value: Any) -> ObjectContainer:
    items = _spread(value)
    kinds = Counter(type(item[-1]).__name__ for item in items)
    seen: set[int] = set()
    each = sum(_size(part, seen) for item in items for part in item) / max(1, len(items))
    count = int(value.size) if _is_object_array(value) else len(value)
    return ObjectContainer(
        path=path.removeprefix("self."),
        kind=f"{type(value).__name__} of {kinds.most_common(1)[0][0]}" if kinds else type(value).__name__,
        items=count,
        bytes=int(sys.getsizeof(value, 0) + each * count),
    )


def _spread(value: Any) -> list[tuple[Any, ...]]:
    """Some items from all over it; of a dict with their keys."""
    if _is_object_array(value):
        value = value.reshape(-1)
    step = max(1, len(value) // _SAMPLED)
    if isinstance(value, dict):
        return list(islice(value.items(), 0, None, step))
    if isinstance(value, set | frozenset | deque):
        return [(item,) for item in islice(value, 0, None, step)]
    return [(value[position],) for position in range(0, len(value), step)]


def _size(item: Any, seen: set[int], depth: int = 0) -> int:
    """Bytes of an object and what it holds, each object once: small numbers and interned words are shared."""
    if id(item) in seen:
        return 0
    seen.add(id(item))
    own = sys.getsizeof(item, 0)
    return own + (sum(_size(part, seen, depth + 1) for part in _inside(item)) if depth < 3 else 0)


def _inside(item: Any) -> Iterator[Any]:
    if isinstance(item, dict):
        parts = [*item.keys(), *item.values()]
    elif isinstance(item, list | tuple | set | frozenset):
        parts = list(item)
    else:
        parts = [*(getattr(item, "__dict__", None) or {}).values()]
    return islice(parts, _INSIDE)
