"""What a model trains and does not know as a parameter: layers in a plain list, tensors as attributes."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any, NamedTuple

from torch import Tensor, nn

from ncclcheck.probes.dataloader.ours import is_users
from ncclcheck.probes.facts.training import Unregistered
from ncclcheck.probes.training.equal.state import plain

_OF_TORCH = frozenset(vars(nn.Module()))
_DEEPEST, _MOST = 3, 2000  # containers within containers, and things that are looked at: chosen


class HiddenTensor(NamedTuple):
    """name: `moe.experts[0].0.weight`; owner, attribute: the module that keeps it, and under which name."""

    name: str
    tensor: Tensor
    owner: nn.Module
    attribute: str


def hidden(model: nn.Module) -> list[HiddenTensor]:
    """Leaves that want a gradient, kept where `parameters()` does not look."""
    known = {id(parameter) for parameter in (*model.parameters(), *model.buffers())}
    found: dict[int, HiddenTensor] = {}
    modules = {id(module) for module in model.modules()}
    for where, module in model.named_modules():
        for attribute, value in _attributes(module).items():
            name = f"{plain(where)}.{attribute}" if where else attribute
            for path, tensor in _leaves(value, name, 0, modules):
                if id(tensor) not in known:
                    found.setdefault(id(tensor), HiddenTensor(path, tensor, module, attribute))
                if len(found) >= _MOST:
                    return [*found.values()]
    return [*found.values()]


def unregistered(model: nn.Module) -> list[Unregistered]:
    """Those of them that have a gradient, as after a backward pass, by the attribute that keeps them."""
    kept: dict[tuple[int, str], list[HiddenTensor]] = {}
    for each in hidden(model):
        if each.tensor.grad is not None:
            kept.setdefault((id(each.owner), each.attribute), []).append(each)
    return [
        Unregistered(
            name=parts[0].name[:200],
            count=len(parts),
            elements=sum(part.tensor.numel() for part in parts),
            owner=type(parts[0].owner).__name__[:100],
            attribute=attribute[:100],
            kind=_kind(_attributes(parts[0].owner)[attribute]),
        )
        for (_, attribute), parts in kept.items()
    ]


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Its own, and those of its class that the user has written, which all its instances share."""
    of_class = {
        name: value
        for kind in reversed(type(module).__mro__)
        if is_users(getattr(inspect.getmodule(kind), "__file__", None) or "<frozen")
        for name, value in vars(kind).items()
        if isinstance(value, Tensor | nn.Module | list | tuple | dict) and not name.startswith("__")
    }
    own = {name: value for name, value in vars(module).items() if name not in _OF_TORCH}
    return of_class | own


def _leaves(thing: Any, name: str, depth: int, known: set[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(thing, Tensor):
        if thing.is_leaf and thing.requires_grad:
            yield name, thing
    elif isinstance(thing, nn.Module):
        if id(thing) not in known:
            yield from ((f"{name}.{inner}", parameter) for inner, parameter in thing.named_parameters())
    elif depth < _DEEPEST:
        for step, value in _parts(thing):
            yield from _leaves(value, f"{name}{step}", depth + 1, known)


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, dict):
        yield from ((f"[{key!r}]", value) for key, value in [*thing.items()][:_MOST])
    elif isinstance(thing, list | tuple):
        yield from ((f"[{number}]", value) for number, value in enumerate(thing[:_MOST]))
    elif isinstance(thing, FunctionType):
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty one
                yield f"({name})", cell.cell_contents
    elif isinstance(thing, functools.partial):
        yield from ((f"({number})", value) for number, value in enumerate(thing.args))
    elif _is_users_object(thing):
        yield from ((f".{name}", value) for name, value in vars(thing).items())


def _is_users_object(thing: Any) -> bool:
    if isinstance(thing, type) or not hasattr(thing, "__dict__"):
        return False
    return is_users(getattr(inspect.getmodule(type(thing)), "__file__", None) or "<frozen")


def _kind(value: Any) -> Any:
    """What keeps it, as Unregistered.kind says."""
    if isinstance(value, Tensor):
        return "tensor"
    parts = [*value.values()] if isinstance(value, dict) else value
    if not isinstance(parts, list | tuple):
        return "object"
    modules = all(isinstance(part, nn.Module) for part in parts)
    if not modules and not all(isinstance(part, Tensor) for part in parts):
        return "object"
    return f"{'modules' if modules else 'tensors'} in a {'dict' if isinstance(value, dict) else 'list'}"
