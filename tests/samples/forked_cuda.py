"""A model whose maker uses CUDA in a process that was forked after CUDA had been used."""

from __future__ import annotations

import multiprocessing

import torch


def _in_the_fork() -> None:
    torch.cuda._is_in_bad_fork = lambda: True  # as torch sees it on a machine with GPUs; the rest is torch's own
    torch.zeros(1, device="cuda")


def model() -> torch.nn.Module:
    """What `smoke --model` asks for."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(_in_the_fork)
    return torch.nn.Linear(8, 8)
