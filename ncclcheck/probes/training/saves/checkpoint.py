"""A checkpoint as people write it: rank 0 under a temporary name, then read by all ranks into a bare model."""

from __future__ import annotations

import io
import os
import pickle
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from ncclcheck.probes.facts.training.checks import DifferingTensor
from ncclcheck.probes.facts.training.saves import RankProblem, Reloaded, Saves
from ncclcheck.probes.machine import files
from ncclcheck.probes.training.equal.alike import MOST, agreement
from ncclcheck.probes.training.equal.state import fingerprints
from ncclcheck.probes.training.loop import TrainingSetting, stream, train_step, wrap
from ncclcheck.probes.training.saves import places

_STEPS = 2  # of training, so that the optimizer has a state to save
_MOST_TENSORS = 5  # in a finding: chosen
_PREFIX = "module."  # of DDP


def run(setting: TrainingSetting) -> None:
    """Train a little, save, and read it again on every rank."""
    plan = setting.plan
    if plan.strategy != "ddp":
        places.unseen(setting, "reload", f"--strategy {plan.strategy}: ranks hold pieces of the model")
        return
    if setting.left() <= 0:
        places.unseen(setting, "reload", "the time box was used up before", missed=True)
        return
    path = Path(plan.run_folder, "checkpoint.pt")
    if problems := places.make(setting):
        _nowhere(setting, path, problems)
        return
    if why := too_large(setting, size_of(setting.model)):
        places.unseen(setting, "reload", why)
        return
    model = wrap(setting, setting.fresh_model())
    optimizer, batches = setting.optimizer(model), stream(setting)
    for _ in range(_STEPS):
        train_step(setting, model, optimizer, batches)
    _tell(setting, _reloaded(setting, model, path))


def _nowhere(setting: TrainingSetting, path: Path, problems: list[RankProblem]) -> None:
    """Where nobody can write into the working directory, nobody said that checkpoints go there."""
    if not setting.plan.checkpoints and len(problems) == setting.context.world_size:
        why = f"{problems[0].problem}; --checkpoint-dir DIR names another place"
        places.unseen(setting, "reload", why, missed=True)
    else:
        _tell(setting, Reloaded(path=str(path), problems=problems[:MOST], failed=len(problems)))


def _reloaded(setting: TrainingSetting, model: nn.Module, path: Path) -> Reloaded:
    size = size_of(model)
    setting.context.step(f"training: write {path}, {size} bytes")
    wrote, problem = written(path, model.state_dict()) if setting.context.rank == 0 else (0.0, "")
    if problems := places.problems(setting, problem):
        return _unwritten(path, problems)
    setting.context.step(f"training: read {path}")
    fresh, begun = setting.fresh_model(), time.monotonic()
    problem = read_into(fresh, path)
    slowest = setting.peers.worst([wrote, time.monotonic() - begun])
    problems = places.problems(setting, problem)
    prints = fingerprints(fresh)
    same = agreement(setting.peers, fresh, prints)
    changed = [] if problems else _unlike(setting, fresh, model, prints)
    return Reloaded(
        path=str(path),
        bytes=size,
        write_s=slowest[0],
        read_s=slowest[1],
        prefixed=all(name.startswith(_PREFIX) for name in model.state_dict()),
        tensors=same.tensors,
        differ=[*same.differing, *changed][:MOST],
        problems=problems[:MOST],
        failed=len(problems),
    )


def size_of(model: nn.Module) -> int:
    """Bytes of its parameters and buffers."""
    return sum(
        tensor.numel() * tensor.element_size()
        for tensor in model.state_dict().values()
        if isinstance(tensor, Tensor)
    )


def too_large(setting: TrainingSetting, size: int) -> str:
    """Why so large a save is not made; empty where it may be. A collective: ranks may have other models."""
    size = int(setting.peers.worst([float(size)])[0])
    if size <= setting.plan.save_bytes:
        return ""
    return f"a save of {size} bytes is more than --save-mib allows: --save-mib {-(-size // 2**20)}"


def _unwritten(path: Path, problems: list[RankProblem]) -> Reloaded:
    return Reloaded(path=str(path), problems=problems[:MOST], failed=len(problems))


def _unlike(
    setting: TrainingSetting, fresh: nn.Module, model: nn.Module, prints: dict[str, int]
) -> list[DifferingTensor]:
    """Tensors that are not what rank 0 saved; its own model is the measure, as others have other statistics.

    What only one of both has, such as a cache that the first forward pass makes, is no difference.
    """
    expected, saved = fingerprints(model), fresh.state_dict()
    parameters = {name for name, _ in fresh.named_parameters()}
    world = setting.peers.world
    apart = [
        DifferingTensor(
            name=name[:200],
            kind="parameter" if name in parameters else "buffer",
            ranks=[*range(min(world, MOST))],
            count=world,
            unsaved=name not in saved,
        )
        for name, value in prints.items()
        if expected.get(name, value) != value
    ]
    everyone = msgspec.json.decode(setting.peers.texts(msgspec.json.encode(apart[:_MOST_TENSORS]).decode())[0])
    return msgspec.convert(everyone, list[DifferingTensor])


def written(path: Path, state: Any) -> tuple[float, str]:
    """Seconds, or what went wrong."""
    begun, buffer = time.monotonic(), io.BytesIO()
    try:
        torch.save(state, buffer)
        places.write_whole(path, buffer.getvalue())
    except Exception as error:  # a user's model may hold what cannot be pickled
        return 0.0, f"writing {path}: {in_words(error)}"
    return time.monotonic() - begun, ""


def read(path: Path, device: torch.device | str = "cpu") -> Any:
    """What was saved by this very run, as a user's own model may hold more than tensors.

    Such a pickle may run anything: it is only taken from a file that is surely ours.
    """
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError:
        with open(files.opened(str(path), os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                raise
            return torch.load(file, map_location=device, weights_only=False)


def read_into(model: nn.Module, path: Path) -> str:
    """Load a wrapped model's state into a bare one; what went wrong."""
    if not places.appears(path):
        return f"{path} is not there, though rank 0 has written it"
    try:
        state = read(path)
        model.load_state_dict({name.removeprefix(_PREFIX): value for name, value in state.items()})
    except Exception as error:  # what torch raises for a damaged file has no common type
        return f"reading {path}: {in_words(error)}"
    return ""


def in_words(error: Exception) -> str:
    """In one line; the system's own words where it has some."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _tell(setting: TrainingSetting, reloaded: Reloaded) -> None:
    if setting.context.rank == 0:
        places.emit(setting, Saves(reloaded=reloaded))
