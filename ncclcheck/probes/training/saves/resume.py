"""A rank is killed in mid-training; a second job goes on from the checkpoint to the same parameters."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ncclcheck.probes.facts.training.saves import InterruptedRuns, Resumed, Saves
from ncclcheck.probes.training.equal.seeds import SEED, seed_all
from ncclcheck.probes.training.feed import Batch
from ncclcheck.probes.training.loop import TrainingSetting, bare, digest, stream, train_step, wrap
from ncclcheck.probes.training.saves import places
from ncclcheck.probes.training.saves.checkpoint import in_words, read, size_of, too_large, written

_MOST_STEPS = 10  # before and after the kill: chosen, equal parameters after ten steps are no chance
_LAST_WORDS_S = 0.2  # until what the ranks told each other last has arrived
_PATIENCE_S = 1.0  # of the survivors, in which torchrun ends them: chosen
_LEAST_S = 25.0  # to train three times, and to start processes once more


def interrupted(setting: TrainingSetting) -> Callable[[], None] | None:
    """Train without an interruption; what then trains again and kills a rank, if that tells anything."""
    if not _may_begin(setting):
        places.remove(setting)
        return None
    context, steps = setting.context, _steps(setting)
    context.step("training: a run that is not interrupted")
    kept, killed = steps // 2, context.world_size - 1
    (model, optimizer), batches = _start(setting), stream(setting)
    _train(setting, model, optimizer, batches, kept)
    model = wrap(setting, bare(model))  # which adds gradients up in another order at first, as after a restart
    _train(setting, model, optimizer, batches, steps - kept)
    found_digest = digest(model)
    if context.rank == 0:
        report = InterruptedRuns(
            digest=found_digest,
            steps=steps,
            kept=kept,
            after=kept + 1,
            killed=killed,
            node=context.node_of[killed],
        )
        places.emit(setting, Saves(interrupted=report))
    return partial(_train_and_die, setting, kept, killed)


def _may_begin(setting: TrainingSetting) -> bool:
    """Whether it applies here, and there are time and a place for it; else that is told."""
    left = -setting.peers.worst([time.monotonic() - setting.context.deadline])[0]
    if why := _reason_against(setting):
        places.unseen(setting, "resume", why)
    elif left < _LEAST_S:
        places.unseen(setting, "resume", f"{left:.0f} s before the deadline are too few", missed=True)
    elif problems := places.make(setting):
        places.unseen(setting, "resume", places.words(problems[0]))
    else:
        return True
    return False


def _reason_against(setting: TrainingSetting) -> str:
    if setting.plan.strategy != "ddp":
        return f"--strategy {setting.plan.strategy}: ranks hold pieces of the model"
    return too_large(setting, _bytes(setting))


def _bytes(setting: TrainingSetting) -> int:
    """Of a checkpoint: the weights, and as much again for each of AdamW's two moments."""
    return 3 * size_of(setting.model)


def _steps(setting: TrainingSetting) -> int:
    return max(4, min(_MOST_STEPS, setting.plan.steps))


def _start(setting: TrainingSetting) -> tuple[nn.Module, Optimizer]:
    """The same on every rank and in every run, but for generators: each rank has its own."""
    seed_all(SEED + 1 + setting.context.rank)
    model = wrap(setting, setting.fresh_model())
    return model, setting.optimizer(model)


def _train(
    setting: TrainingSetting, model: nn.Module, optimizer: Optimizer, batches: Iterator[Batch], steps: int
) -> None:
    for _ in range(steps):
        train_step(setting, model, optimizer, batches)


def _train_and_die(setting: TrainingSetting, kept: int, killed: int) -> None:
    """All has been told by now. The survivors leave by themselves, or are ended by torchrun."""
    context = setting.context
    words = f"save {_bytes(setting)} bytes in {setting.plan.run_folder} after {kept} steps"
    context.step(f"training: {words}, then rank {killed} is killed")
    (model, optimizer), batches = _start(setting), stream(setting)
    _train(setting, model, optimizer, batches, kept)
    if problems := places.problems(setting, _save(setting, model, optimizer)):
        _tell(setting, Resumed(problem=places.words(problems[0])))
        return
    _train(setting, model, optimizer, batches, 1)
    setting.peers.worst([0.0])
    context.done()
    time.sleep(_LAST_WORDS_S)
    if context.rank == killed:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(_PATIENCE_S)
    os._exit(1)


def _save(setting: TrainingSetting, model: nn.Module, optimizer: Optimizer) -> str:
    """Model and optimizer by rank 0, the generators by each rank; what went wrong."""
    problem = ""
    if setting.context.rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        _, problem = written(Path(setting.plan.run_folder, "resume.pt"), state)
    return problem or written(_generators_file(setting), _generators(setting.device))[1]


def _generators_file(setting: TrainingSetting) -> Path:
    return Path(setting.plan.run_folder, f"generators-{setting.context.rank}.pt")


def _generators(device: torch.device) -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (name, [int(key) for key in keys], *rest)
    return states


def _set_generators(device: torch.device, states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    if "numpy" in states and (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = states["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype="uint32"), *rest))


def resumed(setting: TrainingSetting) -> None:
    """The second job: load what the first one left, and train to the end."""
    context, begun, steps = setting.context, time.monotonic(), _steps(setting)
    context.step("training: load the checkpoint of the killed run")
    (model, optimizer), batches = _start(setting), stream(setting)
    for _ in range(steps // 2 * setting.plan.accumulate):
        next(batches)  # read, not only counted: workers get the seeds that they had
    if problems := places.problems(setting, _load(setting, model, optimizer)):
        _tell(setting, Resumed(problem=places.words(problems[0])))
    else:
        _train(setting, model, optimizer, batches, steps - steps // 2)
        _tell(setting, Resumed(digest=digest(model), steps=steps, seconds=time.monotonic() - begun))
    places.remove(setting)


def _load(setting: TrainingSetting, model: nn.Module, optimizer: Optimizer) -> str:
    """What went wrong, if anything did."""
    path, own = Path(setting.plan.run_folder, "resume.pt"), _generators_file(setting)
    if lost := next((path for path in (path, own) if not places.appears(path)), None):
        return f"{lost} is not there, though it was written"
    try:
        state = read(path, setting.device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        _set_generators(setting.device, read(own))
    except Exception as error:  # what torch raises for a damaged file has no common type
        return f"reading {path}: {in_words(error)}"
    return ""


def _tell(setting: TrainingSetting, resumption: Resumed) -> None:
    if setting.context.rank == 0:
        places.emit(setting, Saves(resumed=resumption))
