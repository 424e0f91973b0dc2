"""Whether samples stand behind the end that `len` tells."""

from __future__ import annotations

from typing import Any

from ncclcheck.probes.dataloader import ours
from ncclcheck.probes.dataloader.randomness import seeds
from ncclcheck.probes.dataloader.samples.read import glance
from ncclcheck.probes.dataloader.samples.read.reader import SampleReader
from ncclcheck.probes.facts.data.content import Beyond

_MOST_TIMES = 64  # an end farther away is none


def look(reader: SampleReader) -> Beyond | None:
    """None where len() is the end, or where there is none: such a dataset makes samples for any index."""
    ended = reader.in_child(lambda: _end(reader), list[Beyond], 1.0)
    return next(iter(ended.value or []), None)


def _end(reader: SampleReader) -> list[Beyond]:
    made = reader.made
    length = made.length or 0
    order = glance.ReadingOrder([], reader.plan.seed, workers=reader.plan.workers)
    glance.be_worker(made, order)
    if not _is_there(made.dataset, length) or _is_there(made.dataset, length * _MOST_TIMES):
        return []
    low, high = length, length * _MOST_TIMES  # low is there, high is not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _is_there(made.dataset, middle) else (low, middle)
    knows = _is_told(made.dataset, length)
    return [Beyond(length=length, end=high, told=knows, holder=_holder(made.dataset, high))]


def _is_there(dataset: Any, index: int) -> bool:
    seeds.reseed(0, index)
    try:
        dataset[index]
    except Exception as error:
        ours.pass_on(error)
        return False
    return True


def _is_told(dataset: Any, length: int) -> bool:
    """Whether an attribute is this number, or holds so many things: then the end is one on purpose."""
    return any(_size(value) == length for value in getattr(dataset, "__dict__", {}).values())


def _holder(dataset: Any, end: int) -> str:
    """`self.names`, which holds so many things; empty where none does."""
    attributes = getattr(dataset, "__dict__", {}).items()
    return next(
        (f"self.{name}" for name, value in attributes if not isinstance(value, int) and _size(value) == end), ""
    )


def _size(value: Any) -> int:
    """A number, or how many a container holds."""
    if isinstance(value, int):
        return value
    try:
        return -1 if isinstance(value, str | bytes) else len(value)
    except Exception:  # the user's own __len__, too
        return -1
