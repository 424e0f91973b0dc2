"""The collectives that the user's own model and loss call, agreed upon by all ranks before each one is entered."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor

from ncclcheck.probes.dataloader.factory import FactoryError
from ncclcheck.probes.dataloader.ours import is_users, users_lines
from ncclcheck.probes.facts.training import Entered, EnteredCollective
from ncclcheck.probes.job.timing import RankPeers
from ncclcheck.probes.training.equal.alike import MOST, odd

_NAMES = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter"),
    *("reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "scatter", "barrier"),
    *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
)
# Those that take as much from each rank, and what they name their first argument.
_SIZED = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter"),
    *("reduce_scatter_tensor", "gather", "scatter"),
)
_FIRST = ("tensor", "tensor_list", "output_tensor", "output")
_END = "none"


class Parted(BaseException):
    """Some rank is about to enter another collective than the others, or none; all ranks raise this at once.

    Not an Exception, which the user's step might catch.
    """

    def __init__(self, entered: list[str]) -> None:
        super().__init__("ranks enter different collectives")
        self.entered = entered

    def fact(self, step: int = 0) -> Entered:
        """Where each rank is, and which of them are the odd ones. step: of the given steps."""
        others = odd([_kind(call) for call in self.entered])
        return Entered(entered=self.entered[:MOST], ranks=others[:MOST], step=step)


class NoBackward(FactoryError):
    """The given step returned without a backward pass."""


@contextlib.contextmanager
def agreed(peers: RankPeers, *, every: bool = False) -> Iterator[list[str]]:
    """As long as it lasts, no rank enters a collective of all ranks before all are about to. Raises Parted.

    The first backward pass counts as one, for DDP averages in it; every: so do the others, where ranks have
    equally many.

    What it gives holds the names of those that were called.

    Collectives of some ranks only are entered as they are.
    """
    kept = {name: getattr(dist, name) for name in _NAMES if hasattr(dist, name)}
    by_name = [*_imported({id(function): name for name, function in kept.items()})]
    entering, called = False, list[str]()

    def asked(name: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        nonlocal entering
        if entering or not _of_all(given, named):
            return function(*given, **named)
        entering = True  # what torch calls within, and our own exchange, are no collectives of the model
        try:
            called.append(name)
            _exchange(peers, replace(_call(name), size=_size(name, given, named)))
            return function(*given, **named)
        finally:
            entering = False

    passes, plain_backward = 0, torch.autograd.backward

    def backward(*given: Any, **named: Any) -> Any:
        nonlocal passes, entering
        passes += 1
        if not entering and (every or passes == 1):
            entering = True
            try:
                _exchange(peers, _call("backward"))
            finally:
                entering = False
        return plain_backward(*given, **named)

    torch.autograd.backward = backward
    for name, function in kept.items():
        setattr(dist, name, partial(asked, name, function))
    for module, here, name in by_name:
        setattr(module, here, getattr(dist, name))
    try:
        yield called
        entering = True
        _exchange(peers, EnteredCollective(_END))
    except NoBackward:
        entering = True
        _exchange(peers, EnteredCollective(_END))
        raise
    finally:
        torch.autograd.backward = plain_backward
        for name, function in kept.items():
            setattr(dist, name, function)
        for module, here, name in by_name:
            setattr(module, here, kept[name])


def _imported(known: dict[int, str]) -> Iterator[tuple[ModuleType, str, str]]:
    """Where the user's own modules imported them by name: the module, the name there, and their own."""
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if isinstance(module, ModuleType) and isinstance(file, str) and is_users(file):
            for here, value in [*vars(module).items()]:
                if (name := known.get(id(value))) is not None:
                    yield module, here, name


def _call(name: str) -> EnteredCollective:
    return EnteredCollective(name, tuple(users_lines()[:2]) or ("a line of a library",))


def _exchange(peers: RankPeers, mine: EnteredCollective) -> None:
    entered = peers.texts(str(mine)[:300])
    if len({_kind(call) for call in entered}) > 1:
        raise Parted(entered)


def _kind(call: str) -> str:
    """What must be the same on all ranks."""
    entered = EnteredCollective.read(call)
    return f"{entered.name} of {entered.size}"


def _size(name: str, given: tuple[Any, ...], named: dict[str, Any]) -> str:
    """Elements of a tensor, of all_gather those of each rank's, which may differ if all ranks know them."""
    if name not in _SIZED:
        return ""
    first = given[0] if given else next((named[key] for key in _FIRST if key in named), None)
    if isinstance(first, Tensor):
        return f"{first.numel()} elements"
    if name != "all_gather" or not isinstance(first, list) or not all(isinstance(each, Tensor) for each in first):
        return ""
    counts = [each.numel() for each in first]
    if len({*counts}) == 1:
        return f"{counts[0]} elements of each"
    return f"{', '.join(map(str, counts[:8]))} elements"


def _of_all(given: tuple[Any, ...], named: dict[str, Any]) -> bool:
    groups = [value for value in (*given, *named.values()) if isinstance(value, dist.ProcessGroup)]
    return all(group is dist.group.WORLD for group in groups)
