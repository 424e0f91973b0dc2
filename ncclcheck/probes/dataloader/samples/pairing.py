"""Whether a batch keeps together what belongs to one sample: each row's parts are those of the same sample."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ncclcheck.probes.dataloader import ours
from ncclcheck.probes.facts.data.structure import Unpaired

MOST = 8  # samples of the batch that is tried
# samples in a batch: with two, swapped parts are one pair only, which a symmetric sample may be; chosen
_LEAST = 3
_MOST_LEAVES = 24  # parts of a sample, and items of one list: chosen
_MOST_ELEMENTS = 2**22  # of a tensor that is compared row by row with all samples: chosen, 16 MiB of float32
_MOST_DEPTH = 4  # of containers: chosen; a cycle ends too
_LENGTH = "the length of "

# A row's samples: those that it may be, by one part.
_Rows = list[set[int]]


def unpaired(batch: Any, samples: Sequence[Any], indices: Sequence[int]) -> Unpaired | None:
    """The first row that holds one part of one sample and another part of another; None where none is known to.

    Only parts that come through unchanged (or padded) are compared, and a part that the batch holds twice, as
    mixup and in-batch negatives have it, may be anywhere.
    """
    try:
        matches = _matches(batch, samples)
    except Exception as error:  # parts of any type are compared, with the user's own __eq__
        ours.pass_on(error)
        return None
    for (name, rows), (other, more) in itertools.combinations(matches.items(), 2):
        apart = [row for row, (first, second) in enumerate(zip(rows, more, strict=True)) if not first & second]
        if apart:
            row = apart[0]
            return Unpaired(
                row=row,
                rows=len(apart),
                of=len(samples),
                first=name[:80],
                first_of=indices[min(rows[row])],
                second=other[:80],
                second_of=indices[min(more[row])],
            )
    return None


def _matches(batch: Any, samples: Sequence[Any]) -> dict[str, _Rows]:
    """By part of a sample: of each row the samples whose part it holds. A part counts that every row has."""
    count = len(samples)
    columns = dict(itertools.islice(_columns("", batch, count, 0), _MOST_LEAVES))
    parts = [dict(_parts("", sample, 0)) for sample in samples]
    matches: dict[str, _Rows] = {}
    for name in [*parts[0]][:_MOST_LEAVES]:
        if not all(name in part for part in parts):
            continue
        values = [part[name] for part in parts]
        if all(_same(values[0], value) for value in values[1:]):
            continue
        whole = [
            rows
            for column in columns.values()
            if all(rows := [{j for j, value in enumerate(values) if _holds(row, value)} for row in column])
        ]
        if whole:
            matches[name] = [set().union(*(rows[row] for rows in whole)) for row in range(count)]
    return matches


def _columns(name: str, value: Any, count: int, depth: int) -> Iterator[tuple[str, list[Any]]]:
    """What a batch has one of for each sample."""
    if type(value).__module__ == "numpy" and hasattr(value, "shape"):
        value = torch.as_tensor(value) if value.dtype.kind in "biuf" else value.tolist()
    if isinstance(value, Tensor):
        if value.layout is torch.strided and value.numel() <= _MOST_ELEMENTS and value.dim():
            if value.shape[0] != count and value.dim() > 1 and value.shape[1] == count:
                value = value.transpose(0, 1)  # time first
            if value.shape[0] == count:
                yield name, [*value.detach()]
    elif isinstance(value, Mapping) or hasattr(value, "_fields"):
        items = value.items() if isinstance(value, Mapping) else zip(value._fields, value, strict=False)
        if depth < _MOST_DEPTH:
            for key, part in items:
                yield from _columns(f"{name}.{key}".strip("."), part, count, depth + 1)
    elif isinstance(value, list | tuple):
        if len(value) == count and depth:
            yield name, [*value]
        if depth < _MOST_DEPTH:
            for number, part in enumerate(value[:_MOST_LEAVES]):
                yield from _columns(f"{name}.{number}".strip("."), part, count, depth + 1)


def _parts(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """What a sample is made of: tensors, numbers and texts by name, and the lengths of what has one."""
    if type(value).__module__ == "numpy" and hasattr(value, "shape") and value.dtype.kind in "biuf":
        value = torch.as_tensor(value)
    if isinstance(value, list) and value and all(isinstance(entry, int | float) for entry in value):
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        if value.layout is torch.strided and 0 < value.numel() <= _MOST_ELEMENTS:
            yield name or "the sample", value.detach()
            if value.dim() and value.shape[0] > 1:
                yield f"{_LENGTH}{name or 'the sample'}", value.shape[0]
    elif isinstance(value, str | int | float):
        yield name or "the sample", value
    elif depth < _MOST_DEPTH and isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(f"{name}.{key}".strip("."), part, depth + 1)
    elif depth < _MOST_DEPTH and isinstance(value, list | tuple):
        for number, part in enumerate(value[:_MOST_LEAVES]):
            yield from _parts(f"{name}.{number}".strip("."), part, depth + 1)


def _same(first: Any, other: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(other, Tensor):
        return first.shape == other.shape and bool((first == other).all())
    return not isinstance(first, Tensor) and not isinstance(other, Tensor) and bool(first == other)


def _holds(row: Any, value: Any) -> bool:
    """Whether a row is this part, in another dtype or padded at one end at most."""
    if isinstance(value, str) or isinstance(row, str):
        return isinstance(row, str) and bool(row == value)
    if isinstance(row, int | float):
        row = torch.as_tensor(row)
    if not isinstance(row, Tensor):
        return False
    part = value if isinstance(value, Tensor) else torch.as_tensor(value)
    if row.numel() == part.numel():
        return _equal(row.flatten(), part.flatten())
    if row.dim() != part.dim() or row.dim() == 0 or part.numel() < 2:
        return False
    if any(long < short for long, short in zip(row.shape, part.shape, strict=True)):
        return False
    if _equal(row[tuple(slice(0, size) for size in part.shape)], part):
        return True
    return row.shape[1:] == part.shape[1:] and _equal(row[-part.shape[0] :], part)


def _equal(tensor: Tensor, other: Tensor) -> bool:
    return bool((tensor.to(torch.float64) == other.to(torch.float64).to(tensor.dtype).to(torch.float64)).all())


def enough(samples: Sequence[Any]) -> bool:
    """Whether a batch of so many says anything."""
    return len(samples) >= _LEAST
