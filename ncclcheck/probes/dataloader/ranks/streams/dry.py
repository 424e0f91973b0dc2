"""A stream or a sampler that can be read once: its second epoch has no sample."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from types import GeneratorType
from typing import Any

from ncclcheck.probes.dataloader.views import StreamPass
from ncclcheck.probes.facts.data.sharding import Dry

_LONGER = 5.0  # times that of a reading: rows of a file come fast once nobody hashes them
_NONE = object()


def runs_dry(dataset: Any, first: StreamPass, second: StreamPass, seconds: float) -> bool:
    """Whether it gives nothing more after it was read to its end once. One that was not is read on, where each
    `iter` of it gives the same iterator.
    """
    if callable(getattr(dataset, "reset", None)):
        return False  # the loop calls it between epochs, as of DALI's iterators
    if first.ended:
        return second.ended and not second.items
    with suppress(Exception):  # whatever reading raises is reported where samples are examined
        if iter(dataset) is not iter(dataset):
            return False
        end = time.monotonic() + _LONGER * seconds
        for _ in dataset:
            if time.monotonic() > end:
                return False
        return next(iter(dataset), _NONE) is _NONE
    return False


def counters(dataset: Any) -> dict[str, int]:
    """Whole numbers that it keeps."""
    return {name: value for name, value in _attributes(dataset) if type(value) is int}


def used_up(dataset: Any, before: dict[str, int]) -> Dry:
    """What of it was iterated to its end. before: its counters before the first reading."""
    moved = {name: value for name, value in counters(dataset).items() if before.get(name, value) != value}
    for name, attribute in _attributes(dataset):
        if isinstance(attribute, Iterator) and iter(attribute) is attribute:
            return _of(f"self.{name}", attribute, type(dataset))
    return Dry(counters={name: before[name] for name in [*moved][:3]})


def used_up_sampler(sampler: Any) -> Dry:
    """The same of what gives the indices."""
    return _of(type(sampler).__name__, sampler, type(None))


def _of(source: str, iterator: Any, owner: type) -> Dry:
    if not isinstance(iterator, GeneratorType):
        return Dry(source=source)
    code = iterator.gi_code
    names = [name for name in code.co_varnames[: code.co_argcount] if name not in ("self", "cls")]
    method = hasattr(owner, code.co_name)
    return Dry(source=source, function=code.co_name, arguments=names, method=method)


def _attributes(dataset: Any) -> list[tuple[str, Any]]:
    return [*getattr(dataset, "__dict__", {}).items()][:64]
