"""What the step's state holds, through objects, dicts and lists of the user's: with its name and expression."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn
from torch.utils.data import Dataset

from ncclcheck.probes.dataloader.ours import is_users

_DEEPEST = 4  # objects within objects: chosen, trainer.averages.shadow are two
_MOST = 400  # things in all, and members of one list: chosen

# state_dict: it has one; weights: as many tensors of the same shapes as the model has parameters; value: the rest.
How = Literal["state_dict", "weights", "value"]
Shapes = list[tuple[int, ...]]


class HeldTensor(NamedTuple):
    """name: `trainer.ema.shadow`; expression: `state['trainer'].ema.shadow`; depth: 0 in state itself."""

    name: str
    expression: str
    thing: Any
    depth: int = 0

    def within(self, name: str, expression: str, thing: Any) -> HeldTensor:
        """A part of it."""
        return HeldTensor(f"{self.name}{name}", f"{self.expression}{expression}", thing, self.depth + 1)


def contents(state: Mapping[str, Any], model: nn.Module | None = None) -> list[HeldTensor]:
    """Things with a state_dict, and all others. model: itself and its parts are left out, where an object holds
    them.
    """
    known = {id(module) for module in model.modules()} if model is not None else set[int]()
    things = (
        each
        for name, member in state.items()
        for each in _held(HeldTensor(str(name), f"state[{name!r}]", member), known)
    )
    return [thing for thing, _ in zip(things, range(_MOST), strict=False)]


def shapes(tensors: Collection[Tensor]) -> Shapes:
    """Of these, in an order that does not depend on theirs."""
    return sorted(tuple(tensor.shape) for tensor in tensors)


def how(thing: Any, wanted: Shapes) -> How:
    """wanted: the shapes of the model's parameters."""
    if has_state(thing):
        return "state_dict"
    inner = [*thing.values()] if isinstance(thing, Mapping) else thing
    if not isinstance(inner, list | tuple) or len(inner) != len(wanted):
        return "value"
    tensors = [each for each in inner if isinstance(each, Tensor)]
    floats = all(tensor.is_floating_point() for tensor in tensors)
    return "weights" if floats and shapes(tensors) == wanted else "value"


def has_state(thing: Any) -> bool:
    """Whether it has a state_dict()."""
    return callable(getattr(thing, "state_dict", None)) and not isinstance(thing, type)


def _held(at: HeldTensor, known: set[int]) -> Iterator[HeldTensor]:
    thing = at.thing
    if id(thing) in known:
        return
    if has_state(thing) or at.depth >= _DEEPEST or not (parts := _parts(at)):
        yield at
        return
    known.add(id(thing))
    for part in parts:
        yield from _held(part, known)


def _parts(at: HeldTensor) -> list[HeldTensor]:
    """Of a user's object all, of a dict or list only where something with parts of its own stands in it."""
    thing = at.thing
    if isinstance(thing, dict):
        parts = [at.within(f".{name}", f"[{name!r}]", value) for name, value in [*thing.items()][:_MOST]]
    elif isinstance(thing, list | tuple):
        parts = [at.within(f"[{number}]", f"[{number}]", value) for number, value in enumerate(thing[:_MOST])]
    elif _is_users_object(thing):
        return [at.within(f".{name}", f".{name}", value) for name, value in vars(thing).items()]
    else:
        return []
    return parts if any(has_state(part.thing) or _is_users_object(part.thing) for part in parts) else []


def _is_users_object(thing: Any) -> bool:
    kind = type(thing)
    if isinstance(thing, type | Tensor | Dataset) or not hasattr(thing, "__dict__"):
        return False
    return is_users(getattr(inspect.getmodule(kind), "__file__", None) or "<frozen")
