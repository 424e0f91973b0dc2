"""A rank is killed in mid-training; a second job goes on from the checkpoint to the same parameters."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ncclcheck.probes.facts.training.saves import Interrupted, Resumed, Saves
from ncclcheck.probes.training import places
from ncclcheck.probes.training.checkpoint import serialised
from ncclcheck.probes.training.loop import Setting, digest, stream, train_step, wrap
from ncclcheck.probes.training.seeds import SEED, seed_all

_MOST_STEPS = 10
_PATIENCE_S = 2.0
_LEAST_S = 25.0  # to train three times, and to start processes once more


def interrupted(setting: Setting) -> Callable[[], None] | None:
    """Train without an interruption; what then trains again and kills a rank, if that tells anything."""
    if (why := _reason_against(setting)) or (found := places.make(setting)):
        places.unseen(setting, "resume", why or f"rank {found[0].rank} on {found[0].node}: {found[0].problem}")
        places.remove(setting)
        return None
    context, steps = setting.context, _steps(setting)
    context.step("training: a run that is not interrupted")
    model, optimizer = _start(setting)
    _train(setting, model, optimizer, 0, steps)
    kept, killed = steps // 2, context.world_size - 1
    found_digest = digest(model)
    if context.rank == 0:
        told = Interrupted(
            digest=found_digest,
            steps=steps,
            kept=kept,
            after=kept + 1,
            killed=killed,
            node=context.node_of[killed],
        )
        places.emit(setting, Saves(interrupted=told))
    return partial(_train_and_die, setting, kept, killed)


def _reason_against(setting: Setting) -> str:
    if setting.plan.strategy != "ddp":
        return f"--strategy {setting.plan.strategy}: ranks hold pieces of the model"
    left = -setting.peers.worst([time.monotonic() - setting.context.deadline])[0]
    return f"{left:.0f} s before the deadline are too few" if left < _LEAST_S else ""


def _steps(setting: Setting) -> int:
    return max(4, min(_MOST_STEPS, setting.plan.steps))


def _start(setting: Setting) -> tuple[nn.Module, Optimizer]:
    """The same on every rank and in every run, but for generators: each rank has its own."""
    seed_all(SEED + 1 + setting.context.rank)
    model = wrap(setting, setting.fresh_model())
    return model, setting.optimizer(model)


def _train(setting: Setting, model: nn.Module, optimizer: Optimizer, done: int, until: int) -> None:
    batches = stream(setting, done * setting.plan.accumulate)
    for _ in range(done, until):
        train_step(setting, model, optimizer, batches)


def _train_and_die(setting: Setting, kept: int, killed: int) -> None:
    """All has been told by now. The survivors leave by themselves, or are ended by torchrun."""
    context = setting.context
    context.step(f"training: save after {kept} steps, then rank {killed} is killed")
    model, optimizer = _start(setting)
    _train(setting, model, optimizer, 0, kept)
    _save(setting, model, optimizer)
    _train(setting, model, optimizer, kept, kept + 1)
    setting.peers.worst([0.0])
    context.done()
    if context.rank == killed:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(_PATIENCE_S)
    os._exit(1)


def _save(setting: Setting, model: nn.Module, optimizer: Optimizer) -> None:
    """Model and optimizer by rank 0; the generators by each rank. Raises OSError."""
    folder = Path(setting.plan.run_folder)
    if setting.context.rank == 0:
        held = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        places.write_whole(folder / "resume.pt", serialised(held))
    places.write_whole(_generators_file(setting), serialised(_generators(setting.device)))
    setting.peers.worst([0.0])


def _generators_file(setting: Setting) -> Path:
    return Path(setting.plan.run_folder, f"generators-{setting.context.rank}.pt")


def _generators(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy.random.get_state()
        found["numpy"] = (name, [int(key) for key in keys], *rest)
    return found


def _set_generators(device: torch.device, found: dict[str, Any]) -> None:
    torch.set_rng_state(found["torch"])
    random.setstate(found["python"])
    if "cuda" in found:
        torch.cuda.set_rng_state(found["cuda"], device)
    if "numpy" in found and (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = found["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype="uint32"), *rest))


def resumed(setting: Setting) -> None:
    """The second job: load what the first one left, and train to the end."""
    context, begun, steps = setting.context, time.monotonic(), _steps(setting)
    context.step("training: load the checkpoint of the killed run")
    model, optimizer = _start(setting)
    if found := places.problems(setting, _load(setting, model, optimizer)):
        _tell(setting, Resumed(problem=f"rank {found[0].rank} on {found[0].node}: {found[0].problem}"))
    else:
        _train(setting, model, optimizer, steps // 2, steps)
        _tell(setting, Resumed(digest=digest(model), steps=steps, seconds=time.monotonic() - begun))
    places.remove(setting)


def _load(setting: Setting, model: nn.Module, optimizer: Optimizer) -> str:
    """What went wrong, if anything did."""
    try:
        path = Path(setting.plan.run_folder, "resume.pt")
        held = torch.load(path, map_location=setting.device, weights_only=True)
        model.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        _set_generators(setting.device, torch.load(_generators_file(setting), weights_only=True))
    except Exception as error:  # what torch raises for a damaged file has no common type
        return f"{type(error).__name__}: {error}"
    return ""


def _tell(setting: Setting, found: Resumed) -> None:
    if setting.context.rank == 0:
        places.emit(setting, Saves(resumed=found))
