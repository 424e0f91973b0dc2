"""This process as the only one of its world, for what must not wait for others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

ANSWERS = {
    "get_world_size": 1,
    "is_initialized": False,
    "all_reduce": None,
    "barrier": None,
    "broadcast": None,
}


class _DoneWork:
    """The handle of a collective that was called with async_op, in a world of one."""

    def wait(self, *_timeout: Any) -> bool:
        """It is over."""
        return True

    def is_completed(self) -> bool:
        """It is over."""
        return True


@contextlib.contextmanager
def alone(rank: int = 0) -> Iterator[None]:
    """As long as it lasts, this process is the only one of its world. rank: that it takes itself for."""
    answers = ANSWERS | {"get_rank": rank, "is_initialized": rank > 0}
    kept = {name: getattr(dist, name) for name in answers}
    for name, answer in answers.items():
        setattr(dist, name, lambda *_args, answer=answer, **more: _DoneWork() if more.get("async_op") else answer)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(dist, name, function)
