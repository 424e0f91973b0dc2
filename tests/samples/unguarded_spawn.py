"""A script without the main guard: whoever imports it starts processes, and each of them imports it again."""

from __future__ import annotations

import torch
from torch.multiprocessing.spawn import spawn


def run(rank: int) -> None:
    """What each process does."""
    print(rank)


def model() -> torch.nn.Module:
    """What `smoke --model` asks for."""
    return torch.nn.Linear(8, 8)


spawn(run, nprocs=1)  # type: ignore[no-untyped-call]
