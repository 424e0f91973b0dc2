"""Defects that tests plant in one rank: wrong results of a known pattern and source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ncclcheck.probes.job import operations
from ncclcheck.probes.job.verify.exact import bits

Call = Callable[..., Any]
FROM, TO = 1024, 3072  # the elements of the planted chunk
_DATA = 2000  # elements: smaller tensors are what the ranks tell each other


def _before(change: Callable[[Tensor], object]) -> Callable[[Call], Call]:
    """Change what the rank puts in."""

    def wrap(call: Call) -> Call:
        def changed(tensor: Tensor, *more: Any, **named: Any) -> Any:
            if tensor.numel() > _DATA:
                change(tensor)
            return call(tensor, *more, **named)

        return changed

    return wrap


def _after(change: Callable[[Tensor], object]) -> Callable[[Call], Call]:
    """Change what the rank gets."""

    def wrap(call: Call) -> Call:
        def changed(result: Tensor, *more: Any, **named: Any) -> Any:
            done = call(result, *more, **named)
            if result.numel() > _DATA:
                change(result)
            return done

        return changed

    return wrap


def _stuck(call: Call) -> Call:
    """The first result again and again."""
    kept: dict[int, Tensor] = {}

    def stuck(result: Tensor, *more: Any, **named: Any) -> Any:
        done = call(result, *more, **named)
        if result.numel() > _DATA:
            result.copy_(kept.setdefault(result.numel(), result.clone()))
        return done

    return stuck


def _zero(tensor: Tensor) -> None:
    tensor[FROM:TO] = 0


def _double(tensor: Tensor) -> None:
    tensor[FROM:TO] *= 2


def _negate(tensor: Tensor) -> None:
    tensor[FROM:TO] *= -1


def _piece(tensor: Tensor) -> None:
    tensor[: tensor.numel() // 3] = 0.5


def _bit_3(tensor: Tensor) -> None:
    bits(tensor)[FROM:TO:7] ^= 8


PLANTED: dict[str, tuple[Any, str, Callable[[Call], Call]]] = {
    "missing": (dist, "all_reduce", _before(_zero)),
    "doubled": (dist, "all_reduce", _before(_double)),
    "changed": (dist, "all_reduce", _before(_negate)),
    "same bit": (dist, "broadcast", _after(_bit_3)),
    "chunk": (operations, "_all_gather_single", _after(_zero)),
    "piece": (operations, "_all_gather_single", _after(_piece)),
    "stuck": (dist, "broadcast", _stuck),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """One of them, for as long as a case runs."""
    module, attribute, wrap = PLANTED[name]
    before = getattr(module, attribute)
    setattr(module, attribute, wrap(before))
    yield
    setattr(module, attribute, before)
