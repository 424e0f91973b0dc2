"""What the user's code keeps from step to step: containers that grow, and tensors whose graph does."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from ncclcheck.probes.dataloader.ours import is_users
from ncclcheck.probes.facts.training.course import Growing

# objects, levels, entries of one container, tensors of one list: chosen, bounds the time of a look
_MOST_VISITS, _MOST_DEPTH, _MOST_ENTRIES, _MOST_HELD = 20_000, 6, 64, 1024
_MOST_NESTED = 2  # records in records of a container, as an epoch's outputs are: chosen
_MOST_NODES = 50_000  # of backward graphs: chosen, bounds the time of a look
# that must all grow: two may by chance, such as a list of losses that is cleared every tenth step; chosen
_LEAST_LOOKS = 3
_LEAST_BYTES = 64 * 2**10  # a step, of what holds no graph: as much as is worth a word
_MOST = 5  # in a finding, graphs first: chosen


@dataclass(frozen=True)
class Size:
    """Of a container its entries, of a tensor 0; nodes: of the graphs that it holds; bytes: of its tensors.

    hooks: the entries are functions that a module calls in each pass.
    """

    entries: int
    nodes: int
    bytes: int
    hooks: bool = False


@dataclass
class GrowthWatch:
    """Looks after each step at what these roots hold, and at the globals of the user's own modules."""

    roots: Mapping[str, Any]
    looks: list[dict[str, Size]] = field(default_factory=list)

    def look(self) -> None:
        """After a step."""
        self.looks.append(dict(_sizes({**self.roots, **_globals()})))

    def growing(self) -> list[Growing]:
        """What grew with every step but the first, which makes what is kept."""
        looks = self.looks[1:]
        if len(looks) < _LEAST_LOOKS:
            return []
        places = [place for place in looks[-1] if all(place in look for look in looks)]
        growings = [
            Growing(place=place[:200], steps=len(looks), entries=entries, bytes=bytes_, graph=graph)
            for place in places
            if (grown := _grown([look[place] for look in looks])) is not None
            for entries, bytes_, graph in [grown]
        ]
        return sorted(growings, key=lambda growing: not growing.graph)[:_MOST]


def _grown(sizes: list[Size]) -> tuple[int, int, bool] | None:
    """Entries and bytes a step, and whether graphs pile up; None where it does not grow with every step."""
    pairs = [*itertools.pairwise(sizes)]
    steps, first, last = len(pairs), sizes[0], sizes[-1]
    longer = all(two.entries > size.entries for size, two in pairs)
    if all(two.nodes > size.nodes for size, two in pairs) and (longer or not last.entries):
        return (last.entries - first.entries) // steps, (last.bytes - first.bytes) // steps, True
    bytes_ = (last.bytes - first.bytes) // steps
    if longer and last.hooks:
        return (last.entries - first.entries) // steps, 0, False
    if longer and bytes_ >= _LEAST_BYTES:
        return (last.entries - first.entries) // steps, bytes_, False
    return None


def _globals() -> dict[str, Any]:
    """Of the user's own modules, as `file.py: name`."""
    variables: dict[str, Any] = {}
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if isinstance(module, ModuleType) and isinstance(file, str) and is_users(file):
            short = file.rpartition("/")[2]
            variables |= {
                f"{short}: {name}": value for name, value in vars(module).items() if not name.startswith("__")
            }
    return variables


def _sizes(roots: Mapping[str, Any]) -> Iterator[tuple[str, Size]]:
    """Of each container and tensor below the roots, each once, by its path."""
    waiting = deque((place, thing, 0) for place, thing in roots.items())
    seen: set[int] = set()
    visits = 0
    while waiting and visits < _MOST_VISITS:
        place, thing, depth = waiting.popleft()
        visits += 1
        if id(thing) in seen or isinstance(thing, str | bytes | int | float | bool | type | ModuleType | None):
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            if thing.grad_fn is not None:
                yield place, Size(0, _nodes([thing]), _bytes(thing))
            continue
        if isinstance(thing, nn.Module):
            yield f"the hooks of {place}", Size(_hooks(thing), 0, 0, hooks=True)
        if isinstance(thing, list | tuple | set | deque | dict):
            tensors = [*_tensors(thing)]
            if tensors and not (isinstance(thing, deque) and thing.maxlen is not None):
                yield place, Size(len(thing), _nodes(tensors[-_MOST_HELD:]), sum(map(_bytes, tensors)))
        if depth < _MOST_DEPTH:
            waiting.extend((where, part, depth + 1) for where, part in _below(place, thing))


def _hooks(module: nn.Module) -> int:
    kinds = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return sum(map(len, kinds))


def _tensors(thing: Any, depth: int = 0) -> Iterator[Tensor]:
    """Of a container, also in the records that it holds: tuples, lists and dicts of tensors."""
    for part in thing.values() if isinstance(thing, dict) else thing:
        if isinstance(part, Tensor):
            yield part
        elif depth < _MOST_NESTED and isinstance(part, list | tuple | dict):
            yield from _tensors(part, depth + 1)


def _below(place: str, thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, dict):
        yield from ((f"{place}[{key!r}]"[:200], value) for key, value in [*thing.items()][:_MOST_ENTRIES])
    elif isinstance(thing, list | tuple | deque):
        yield from ((f"{place}[{number}]", value) for number, value in enumerate([*thing][:_MOST_ENTRIES]))
    elif isinstance(thing, nn.Module):
        yield from ((f"{place}.{name}", value) for name, value in vars(thing).items() if not name.startswith("_"))
        yield from ((f"{place}.{name}", module) for name, module in thing._modules.items())
    elif isinstance(thing, MethodType):
        yield place.partition(":")[0] + ": self", thing.__self__
        yield place, thing.__func__
    elif isinstance(thing, FunctionType):
        yield from _of_function(place, thing)
    elif is_users(_file_of(type(thing))):
        yield from ((f"{place}.{name}", value) for name, value in getattr(thing, "__dict__", {}).items())


def _of_function(place: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What it keeps between calls: cells of its closure, defaults, attributes."""
    if not is_users(function.__code__.co_filename):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"{place}, {name}", cell.cell_contents
        except ValueError:
            continue
    yield from ((f"{place}, default {number}", value) for number, value in enumerate(function.__defaults__ or ()))
    yield from ((f"{place}.{name}", value) for name, value in vars(function).items())


def _file_of(kind: type) -> str:
    try:
        return inspect.getfile(kind)
    except (TypeError, OSError):
        return sys.executable if kind.__module__ == "builtins" else "<frozen>"


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _nodes(tensors: list[Tensor]) -> int:
    """Steps of the backward passes that these tensors hold on to, each once."""
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen: set[Any] = set()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        waiting.extend(function for function, _ in node.next_functions if function is not None)
    return len(seen)
