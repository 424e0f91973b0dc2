"""Where the user's step changes weights itself, outside of an optimizer: a load, an average, a projection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from ncclcheck.probes.dataloader.ours import users_line
from ncclcheck.probes.facts.training import WrittenWeights
from ncclcheck.probes.job.timing import RankPeers
from ncclcheck.probes.training.equal.alike import of_all_ranks
from ncclcheck.probes.training.equal.state import plain

_MOST = 8  # lines that are kept: chosen, a step has one or two
_MOST_STEPS = 64  # of one line: chosen, more than are taken
_NO_VALUES = ("requires_grad_", "detach_", "share_memory_", "retain_grad_", "__set__")


class TorchWrites:
    """Looks at each call of a function of torch. optimizing: an optimizer is taking its step, which may write."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.optimizing = False
        self._step = 0
        self._names: dict[int, str] = {}
        self._lines: dict[str, tuple[str, list[int]]] = {}

    def begin(self) -> None:
        """A step begins. Layers may have been replaced since the last one."""
        self._step += 1
        self._names = {
            _memory(parameter): plain(name)
            for name, parameter in self._model.named_parameters()
            if _has_memory(parameter)
        }

    def look(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Before the call of this function. Those of torch.nn.init come with `tensor=`."""
        if self.optimizing or not _writes(func, name):
            return
        first = args[0] if args else named.get("tensor")
        for tensor in first if isinstance(first, list | tuple) else (first,):
            written = self._names.get(_memory(tensor)) if _has_memory(tensor) else None
            if written is not None and (line := users_line()):
                self._note(line, written)
                return

    def _note(self, line: str, name: str) -> None:
        if line not in self._lines and len(self._lines) >= _MOST:
            return
        steps = self._lines.setdefault(line, (name, []))[1]
        if (not steps or steps[-1] != self._step) and len(steps) < _MOST_STEPS:
            steps.append(self._step)

    def lines(self, peers: RankPeers) -> list[WrittenWeights]:
        """All ranks must ask. Those lines come first that only some ranks came to."""
        return sorted(
            _found(of_all_ranks(peers, self._lines)), key=lambda write: (not write.ranks, not write.uneven)
        )


def _found(ranks: list[dict[str, tuple[str, list[int]]]]) -> Iterator[WrittenWeights]:
    for line in dict.fromkeys(line for rank in ranks for line in rank):
        wrote = [number for number, rank in enumerate(ranks) if line in rank]
        name, steps = ranks[wrote[0]][line]
        yield WrittenWeights(
            at=line[:200],
            name=name[:200],
            step=steps[0],
            ranks=wrote[:_MOST] if len(wrote) < len(ranks) else [],
            uneven=any(ranks[number][line][1] != steps for number in wrote),
        )


def _writes(func: Callable[..., Any], name: str) -> bool:
    """`copy_`, `_foreach_mul_`, `__setitem__`, `__iadd__`, and what is assigned to `.data`."""
    if name == "__set__":
        return getattr(getattr(func, "__self__", None), "__name__", "") == "data"
    if name in _NO_VALUES:
        return False
    return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__" or name.startswith("__i")


def _has_memory(thing: Any) -> bool:
    return type(thing) in (Tensor, nn.Parameter) and not thing.is_meta and thing.numel() > 0 and _is_plain(thing)


def _is_plain(tensor: Tensor) -> bool:
    return not (tensor.is_sparse or tensor.is_sparse_csr or tensor.is_mkldnn)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
