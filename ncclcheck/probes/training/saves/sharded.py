"""How long a save takes where ranks hold pieces: gathered and written by rank 0, or each rank its own piece."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ncclcheck.probes.facts.training.saves import Saves, ShardedSave
from ncclcheck.probes.training.loop import TrainingSetting
from ncclcheck.probes.training.saves import places
from ncclcheck.probes.training.saves.checkpoint import in_words, written
from ncclcheck.probes.training.wraps import sharding

_LAYERS = 8  # chosen: several layers, as FSDP shards them one by one
_LEAST = 2**20  # bytes: chosen, less is a test of opening files


def run(setting: TrainingSetting) -> None:
    """Shard a stack of layers that is as large as may be written, gather it, and write it both ways."""
    if setting.left() <= 0:
        places.unseen(setting, "sharded", "the time box was used up before", missed=True)
        return
    if problems := places.make(setting):
        places.unseen(setting, "sharded", places.words(problems[0]))
        return
    setting.context.step("training: a stack of layers in pieces")
    try:
        model, problem = sharding.fully_sharded(_stack(setting), setting.device), ""
    except (ImportError, RuntimeError, ValueError) as error:
        model, problem = nn.Module(), in_words(error)
    if failed := places.problems(setting, problem):
        places.unseen(setting, "sharded", places.words(failed[0]))
        return
    measured = _measured(setting, model, Path(setting.plan.run_folder))
    if setting.context.rank == 0:
        places.emit(setting, Saves(sharded=measured))


def _stack(setting: TrainingSetting) -> nn.Module:
    """Layers of equal size, so many bytes together, that every rank makes alike."""
    side = max(64, int((max(_LEAST, setting.plan.save_bytes) / 4 / _LAYERS) ** 0.5) // 64 * 64)
    return nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(_LAYERS))).to(setting.device)


def _measured(setting: TrainingSetting, model: nn.Module, folder: Path) -> ShardedSave:
    context = setting.context
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    context.step(f"training: gather {size} bytes on rank 0 and write them to {folder}")
    gathered, gather_s = _timed(setting, lambda: dict(_gathered(model)))
    wrote, problem = written(folder / "gathered.pt", gathered) if context.rank == 0 else (0.0, "")
    write_s = setting.peers.worst([wrote])[0]
    _remove(folder / "gathered.pt")
    context.step(f"training: write the pieces of all ranks to {folder}")
    path = folder / f"piece-{context.rank}.pt"
    (_, mine), shards_s = _timed(setting, lambda: written(path, dict(_pieces(model))))
    failed = places.problems(setting, problem or mine)
    _remove(path)
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


def _timed(setting: TrainingSetting, work: Any) -> tuple[Any, float]:
    """What it gives, and the seconds of the slowest rank."""
    dist.barrier()
    begun = time.monotonic()
    result = work()
    if setting.device.type == "cuda":
        torch.cuda.synchronize(setting.device)
    return result, setting.peers.worst([time.monotonic() - begun])[0]


def _gathered(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole parameters on the host of rank 0, one after the other, as ZeRO-3 gathers 16-bit weights."""
    for name, parameter in model.named_parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        if dist.get_rank() == 0:
            yield name, whole.detach().cpu()


def _pieces(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """What this rank holds, on the host."""
    for name, parameter in model.named_parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        yield name, local.detach().cpu().clone()


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
