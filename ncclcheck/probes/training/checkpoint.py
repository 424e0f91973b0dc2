"""A checkpoint as people write it: rank 0 under a temporary name, then read by all ranks into a bare model."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ncclcheck.probes.facts.training.saves import Reloaded, Saves
from ncclcheck.probes.training import places
from ncclcheck.probes.training.alike import MOST, agreement
from ncclcheck.probes.training.loop import Setting, stream, train_step, wrap
from ncclcheck.probes.training.state import combined, fingerprints, plain

_STEPS = 2


def run(setting: Setting) -> None:
    """Train a little, save, and read it again on every rank."""
    context, plan = setting.context, setting.plan
    if plan.strategy != "ddp":
        places.unseen(setting, "reload", f"--strategy {plan.strategy}: ranks hold pieces of the model")
        return
    if setting.left() <= 0:
        places.unseen(setting, "reload", "the time box was used up before")
        return
    path = Path(plan.run_folder, "checkpoint.pt")
    if found := places.make(setting):
        _tell(setting, Reloaded(path=str(path), problems=found[:MOST], failed=len(found)))
        return
    model = wrap(setting, setting.fresh_model())
    optimizer, batches = setting.optimizer(model), stream(setting)
    for _ in range(_STEPS):
        train_step(setting, model, optimizer, batches)
    _tell(setting, _reloaded(setting, model, path, context.rank == 0))


def _reloaded(setting: Setting, model: nn.Module, path: Path, writes: bool) -> Reloaded:
    data, problem = serialised(model.state_dict()), ""
    setting.context.step(f"training: write {path}, {len(data)} bytes")
    wrote, begun = 0.0, 0.0
    if len(data) > setting.plan.save_bytes:
        problem = f"a checkpoint has {len(data)} bytes, --save-mib allows {setting.plan.save_bytes}"
    elif writes:
        wrote, problem = written(path, data)
    setting.peers.worst([0.0])
    setting.context.step(f"training: read {path}")
    fresh, begun = setting.fresh_model(), time.monotonic()
    prefixed = all(name.startswith("module.") for name in model.state_dict())
    problem = problem or read_into(fresh, path)
    slowest = setting.peers.worst([wrote, time.monotonic() - begun])
    found = places.problems(setting, problem)
    prints = fingerprints(fresh)
    same = agreement(setting.peers, fresh, prints)
    changed = [] if found else _unlike(setting, prints, fingerprints(model))
    return Reloaded(
        path=str(path),
        bytes=len(data),
        write_s=slowest[0],
        read_s=slowest[1],
        prefixed=prefixed,
        tensors=same.tensors,
        differ=[*same.differing, *changed][:MOST],
        problems=found[:MOST],
        failed=len(found),
    )


def _unlike(setting: Setting, found: dict[str, int], expected: dict[str, int]) -> list[Any]:
    """Ranks on which the model that was read is not the one that was saved."""
    from ncclcheck.probes.facts.training.checks import Differing  # noqa: PLC0415

    equal = setting.peers.texts("1" if combined(found) == combined(expected) else "0")
    ranks = [rank for rank, text in enumerate(equal) if text == "0"]
    return [Differing(name="the model as it was saved", ranks=ranks[:MOST], count=len(ranks))] if ranks else []


def serialised(state: Any) -> bytes:
    """As torch.save writes it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def written(path: Path, data: bytes) -> tuple[float, str]:
    """Seconds, or what went wrong."""
    try:
        return places.write_whole(path, data), ""
    except OSError as error:
        return 0.0, f"writing {path}: {error.strerror or error}"


def read_into(model: nn.Module, path: Path) -> str:
    """Load a wrapped model's state into a bare one; what went wrong."""
    if not places.appears(path):
        return f"{path} is not there, though rank 0 has written it"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict({plain(name): tensor for name, tensor in state.items()})
    except Exception as error:  # what torch raises for a damaged file has no common type
        return f"reading {path}: {type(error).__name__}: {error}"
    return ""


def _tell(setting: Setting, found: Reloaded) -> None:
    if setting.context.rank == 0:
        places.emit(setting, Saves(reloaded=found))
