"""Floats of a sample that are infinite or no number, by the part that holds them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from ncclcheck.probes.facts.data.content import NotFinite

_MOST_DEPTH = 6  # of containers: chosen; a cycle ends too
_MOST_EXAMPLES = 5  # in a finding, the rest is counted: chosen
_ASKS = re.compile(
    r"isnan|isfinite|isinf|nan_to_num|nanmean|nansum|nanstd|fillna|isna\b|float\(.-?inf|\.inf\b|\.nan\b"
)


def add(counts: dict[str, NotFinite], index: int, sample: Any) -> None:
    """Count this sample where a part of it is not finite."""
    for leaf, tensor in _floats("", sample, 0):
        if bool(torch.isfinite(tensor).all()):
            continue
        finite = counts.get(leaf) or NotFinite(leaf=leaf, count=0)
        examples = [*finite.examples, index][:_MOST_EXAMPLES]
        nan = finite.nan + bool(torch.isnan(tensor).any())
        counts[leaf] = replace(finite, count=finite.count + 1, nan=nan, examples=examples)


def meant(dataset: Any) -> bool:
    """Whether the file of the dataset's class asks for such values: there they stand for what is missing."""
    with suppress(TypeError, OSError):
        return _ASKS.search(Path(inspect.getfile(type(dataset))).read_text(errors="replace")) is not None
    return True


def _floats(path: str, value: Any, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.layout is torch.strided and value.device.type == "cpu":
            yield path, value.detach()
    elif isinstance(value, float):
        yield path, torch.tensor(value)
    elif type(value).__module__ == "numpy" and getattr(getattr(value, "dtype", None), "kind", "") == "f":
        with suppress(TypeError, ValueError):
            yield path, torch.as_tensor(value.copy())  # it may be read-only
    elif depth < _MOST_DEPTH and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _floats(f"{path}.{key}" if path else str(key), item, depth + 1)
    elif depth < _MOST_DEPTH and isinstance(value, list | tuple) and len(value) < 64:
        for number, item in enumerate(value):
            yield from _floats(f"{path}.{number}" if path else str(number), item, depth + 1)
