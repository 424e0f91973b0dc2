"""FSDP by fully_shard, where this torch has it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class Unsupported(RuntimeError):
    """This torch cannot do it."""


def _fully_shard() -> Any:
    """Since torch 2.6 it is public; 2.4 and 2.5 have it under another name."""
    for place in ("torch.distributed.fsdp", "torch.distributed._composable.fsdp"):
        with contextlib.suppress(ImportError, AttributeError):
            return __import__(place, fromlist=["fully_shard"]).fully_shard
    raise Unsupported(f"torch {torch.__version__} has no fully_shard; 2.4 and later do")


def fully_sharded(model: nn.Module, device: torch.device) -> nn.Module:
    """The model in pieces, one of each parameter a rank: layers of lists, the innermost first, then the rest."""
    shard = _fully_shard()  # first: a torch without it has no public device_mesh either
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for part in reversed([*model.modules()]):  # bottom-up, as torch asks: experts of a layer before the layer
        if isinstance(part, nn.ModuleList):
            for layer in part:
                shard(layer, mesh=mesh)
    shard(model, mesh=mesh)
    return model


def is_sharded(model: nn.Module) -> bool:
    """Whether ranks hold pieces of it."""
    return hasattr(model, "set_requires_gradient_sync")


@contextlib.contextmanager
def unsynchronised(model: nn.Module) -> Iterator[None]:
    """Gradients stay on this rank."""
    switch: Any = getattr(model, "set_requires_gradient_sync", None)
    if switch is not None:
        switch(False)
    yield
    if switch is not None:
        switch(True)
