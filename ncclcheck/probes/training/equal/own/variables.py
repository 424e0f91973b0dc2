"""Globals of the user's own modules that hold data: numbers, tensors, arrays, and lists and dicts of them."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ncclcheck.probes.dataloader.ours import is_users

_MOST, _MOST_ENTRIES = 200, 200  # variables in all, and entries of one: chosen
_MOST_BYTES = 16 * 1024**2  # of one, which is copied some times: chosen, above what counts and averages take
_DEEPEST = 2  # containers in containers: chosen


class VariableName(NamedTuple):
    """module: its name in sys.modules."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module.rpartition('.')[2]}.{self.name}"


Variables = Mapping[VariableName, Any]


def variables() -> dict[VariableName, Any]:
    """The things themselves, as they are now."""
    found: dict[VariableName, Any] = {}
    for module_name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if module_name.startswith("__") or not isinstance(file, str) or not is_users(file):
            continue
        for name, value in [*vars(module).items()]:
            if not name.startswith("__") and is_data(value) and len(found) < _MOST:
                found[VariableName(module_name, name)] = value
    return found


def copied(things: Variables) -> dict[VariableName, Any]:
    """As they are now; what several names share is shared by the copies as well."""
    return copy.deepcopy(dict(things))


def anew(things: Variables) -> contextlib.AbstractContextManager[None]:
    """As long as it lasts, globals begin as these are, as in a process that has just been started."""
    return placed(copied(things))


@contextlib.contextmanager
def placed(things: Variables) -> Iterator[None]:
    """As long as it lasts, these stand in the place of what has their names; then that is back."""
    before = {at: vars(sys.modules[at.module])[at.name] for at in things if at.module in sys.modules}
    try:
        for at in before:
            vars(sys.modules[at.module])[at.name] = things[at]
        yield
    finally:
        for at, value in before.items():
            vars(sys.modules[at.module])[at.name] = value


def is_data(thing: Any, depth: int = 0) -> bool:
    """Whether it is a value, or a container of values alone."""
    if isinstance(thing, bool | int | float):
        return True
    if isinstance(thing, Tensor):  # one that is trained is held by an optimizer as well
        is_plain = type(thing) is Tensor and thing.layout is torch.strided
        return is_plain and thing.is_leaf and not thing.requires_grad and _is_small(thing)
    if type(thing).__module__ == "numpy" and type(thing).__name__ == "ndarray":
        return thing.dtype.kind in "biuf" and _is_small(thing)
    if not isinstance(thing, list | dict | deque) or depth == _DEEPEST or len(thing) > _MOST_ENTRIES:
        return False
    parts = thing.values() if isinstance(thing, dict) else thing
    return all(is_data(part, depth + 1) for part in parts)


def _is_small(array: Any) -> bool:
    return int(array.nbytes) <= _MOST_BYTES
