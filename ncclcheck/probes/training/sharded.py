"""How long a save takes where ranks hold pieces: gathered and written by rank 0, or each rank its own piece."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ncclcheck.probes.facts.training.saves import Saves, ShardedSave
from ncclcheck.probes.training import places, sharding
from ncclcheck.probes.training.checkpoint import serialised, written
from ncclcheck.probes.training.loop import Setting

_LAYERS = 8
_LEAST = 2**20


def run(setting: Setting) -> None:
    """Shard a stack of layers that is as large as may be written, gather it, and write it both ways."""
    if setting.left() <= 0:
        places.unseen(setting, "sharded", "the time box was used up before")
        return
    found = places.make(setting)
    if found:
        places.unseen(setting, "sharded", f"rank {found[0].rank} on {found[0].node}: {found[0].problem}")
        return
    try:
        model = sharding.fully_sharded(_stack(setting), setting.device)
    except (sharding.Unsupported, ImportError, RuntimeError, ValueError) as error:
        places.unseen(setting, "sharded", f"{type(error).__name__}: {error}")
        return
    measured = _measured(setting, model, Path(setting.plan.run_folder))
    if setting.context.rank == 0:
        places.emit(setting, Saves(sharded=measured))


def _stack(setting: Setting) -> nn.Module:
    """Layers of equal size, so many bytes together, that every rank makes alike."""
    side = max(64, int((max(_LEAST, setting.plan.save_bytes) / 4 / _LAYERS) ** 0.5) // 64 * 64)
    return nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(_LAYERS))).to(setting.device)


def _measured(setting: Setting, model: nn.Module, folder: Path) -> ShardedSave:
    context = setting.context
    size = sum(one.numel() * one.element_size() for one in model.parameters())
    context.step(f"training: gather {size} bytes on rank 0 and write them to {folder}")
    gathered, gather_s = _timed(setting, lambda: dict(_gathered(model)))
    problem, write_s = "", 0.0
    if context.rank == 0:
        write_s, problem = written(folder / "gathered.pt", serialised(gathered))
    write_s = setting.peers.worst([write_s])[0]
    context.step(f"training: write the pieces of all ranks to {folder}")
    pieces = serialised({name: _piece(one) for name, one in model.named_parameters()})
    (_, mine), shards_s = _timed(setting, lambda: written(folder / f"piece-{context.rank}.pt", pieces))
    failed = places.problems(setting, problem or mine)
    _remove(folder, context.rank)
    return ShardedSave(
        folder=str(folder),
        bytes=size,
        ranks=context.world_size,
        gather_s=gather_s,
        write_s=write_s,
        shards_s=shards_s,
        timeout_s=setting.plan.timeout_s,
        parameters=setting.plan.parameters,
        problems=failed[:5],
    )


def _timed(setting: Setting, work: Any) -> tuple[Any, float]:
    """What it gives, and the seconds of the slowest rank."""
    dist.barrier()
    begun = time.monotonic()
    result = work()
    if setting.device.type == "cuda":
        torch.cuda.synchronize(setting.device)
    return result, setting.peers.worst([time.monotonic() - begun])[0]


def _gathered(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole parameters on the host of rank 0, one after the other, as ZeRO-3 gathers 16-bit weights."""
    for name, one in model.named_parameters():
        whole = one.full_tensor() if hasattr(one, "full_tensor") else one
        if dist.get_rank() == 0:
            yield name, whole.detach().cpu()


def _piece(one: Any) -> torch.Tensor:
    local: torch.Tensor = one.to_local() if hasattr(one, "to_local") else one
    return local.detach().cpu().clone()


def _remove(folder: Path, rank: int) -> None:
    for name in ("gathered.pt", f"piece-{rank}.pt"):
        if rank == 0 or name != "gathered.pt":
            (folder / name).unlink(missing_ok=True)
