"""Labels and token numbers that the model has no class or row for, said before torch or a GPU says it worse.

On a GPU the kernel asserts: the exception comes later, at another line, and nothing works after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_LOSSES = (functional.cross_entropy, functional.nll_loss)
_IGNORED = -100  # torch's own value of ignore_index

Given = tuple[Any, ...]


class OutOfRange(IndexError):
    """row: of the batch, where it is known; index: of the dataset."""

    def __init__(self, value: str, row: int | None, rest: str) -> None:
        self.value, self.row, self.rest = value, row, rest
        super().__init__(self.words())

    def words(self, index: int | None = None) -> str:
        """`label 10 of sample 17: ...`."""
        where = f" of sample {index}" if index is not None else f" in row {self.row} of the batch"
        return f"{self.value}{where if index is not None or self.row is not None else ''}: {self.rest}"


class Bounds(TorchFunctionMode):
    """As long as it is entered, looks at what these functions are given. rows: samples of a batch."""

    def __init__(self, rows: int = 0) -> None:
        super().__init__()
        self._rows = rows

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: Given = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Raises OutOfRange."""
        look(func, args, kwargs or {}, self._rows)
        return func(*args, **(kwargs or {}))


def look(func: Callable[..., Any], args: Given, named: dict[str, Any], rows: int = 0) -> None:
    """Raises OutOfRange, where this call of torch would raise or assert for it."""
    if func in _LOSSES:
        given = (
            dict(zip(("input", "target", "weight", "size_average", "ignore_index"), args, strict=False)) | named
        )
        scores, target = given.get("input"), given.get("target")
        if isinstance(target, Tensor) and _numbers(target) and isinstance(scores, Tensor) and scores.dim():
            classes = scores.shape[1] if scores.dim() > 1 else scores.shape[0]
            _labels(target, classes, int(given.get("ignore_index", _IGNORED)), rows)
    elif func is functional.embedding:
        given = dict(zip(("input", "weight"), args, strict=False)) | named
        numbers, weight = given.get("input"), given.get("weight")
        if isinstance(numbers, Tensor) and _numbers(numbers) and isinstance(weight, Tensor) and weight.dim() == 2:
            _tokens(numbers, weight.shape[0], rows)


def _numbers(thing: Tensor) -> bool:
    return type(thing) is Tensor and not thing.is_floating_point() and not thing.is_meta and bool(thing.numel())


def _labels(target: Tensor, classes: int, ignored: int, rows: int) -> None:
    counted = target != ignored
    if (place := _first((target < 0) | (target >= classes), counted)) is None:
        return
    least, most = _range(target[counted])
    raise OutOfRange(
        f"label {int(target.flatten()[place])}",
        _row(place, target, rows),
        f"the scores have {classes} classes, 0 to {classes - 1}, and the labels of the batch go from {least} to "
        f"{most}",
    )


def _tokens(numbers: Tensor, size: int, rows: int) -> None:
    if (place := _first((numbers < 0) | (numbers >= size), torch.ones_like(numbers, dtype=torch.bool))) is None:
        return
    least, most = _range(numbers)
    raise OutOfRange(
        f"number {int(numbers.flatten()[place])}",
        _row(place, numbers, rows),
        f"the embedding has {size} rows, 0 to {size - 1}, and the numbers of the batch go from {least} to {most}",
    )


def _first(wrong: Tensor, counted: Tensor) -> int | None:
    both = (wrong & counted).flatten()
    return int(both.nonzero()[0]) if bool(both.any()) else None


def _range(values: Tensor) -> tuple[int, int]:
    return int(values.min()), int(values.max())


def _row(place: int, tensor: Tensor, rows: int) -> int | None:
    """Of the batch: its samples lie one after the other, in one dimension or in several."""
    return place // (tensor.numel() // rows) if rows and tensor.numel() % rows == 0 else None
