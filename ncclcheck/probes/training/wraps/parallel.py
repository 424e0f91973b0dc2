"""One process that drives several GPUs (nn.DataParallel): whether the model is such a one, and its cost."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from statistics import median

import torch
from torch import nn

from ncclcheck.probes.facts.training import DataParallels
from ncclcheck.probes.job.context import TrainingPlan
from ncclcheck.probes.job.operations import barrier
from ncclcheck.probes.machine.process import die_with_parent
from ncclcheck.probes.training import given
from ncclcheck.probes.training.feed import Batch, mapped, moved
from ncclcheck.probes.training.loop import TrainingSetting

_NAMED = 8  # wrapped modules in a finding: chosen
_LIMIT_S = 60.0  # for a child that makes contexts on all GPUs and runs 22 steps: chosen
# steps that are not counted (the first compiles and allocates) and those whose median is told: chosen
_WARM, _STEPS = 3, 8


def seen(setting: TrainingSetting, batch: Batch) -> DataParallels:
    """What stands in the model; where rank 0 sees several GPUs, a process of its own drives all of them."""
    wrapped = [
        name or "model" for name, module in setting.model.named_modules() if isinstance(module, nn.DataParallel)
    ]
    context = setting.context
    gpus = torch.cuda.device_count() if setting.device.type == "cuda" else 0
    single = both = None
    if gpus > 1 and context.rank == 0:
        single, both = apart(setting.plan, batch, gpus)
    barrier(setting.device)
    return DataParallels(
        wrapped=wrapped[:_NAMED],
        gpus=gpus,
        ranks=list(context.node_of).count(context.node),
        one_us=single,
        all_us=both,
    )


def apart(plan: TrainingPlan, batch: Batch, gpus: int) -> tuple[float | None, float | None]:
    """Microseconds of a step over one GPU and over all, from a child: its contexts on other GPUs end with it."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    child = spawn.Process(target=_child, args=(plan, batch, gpus, theirs), daemon=True)
    child.start()
    theirs.close()
    times: tuple[float | None, float | None] = (None, None)
    with suppress(EOFError):  # it ended without an answer: out of memory, or the user's code
        if ours.poll(_LIMIT_S):
            times = ours.recv()
    child.kill()
    child.join()
    return times


def _child(plan: TrainingPlan, batch: Batch, gpus: int, pipe: Connection) -> None:
    die_with_parent()
    device = torch.device("cuda", 0) if gpus else torch.device("cpu")
    model, loss = given.model(plan).to(device), given.loss(plan)
    whole = mapped(batch, lambda tensor: torch.cat([tensor] * max(1, gpus)) if tensor.dim() else tensor)
    parallel = nn.DataParallel(model, device_ids=list(range(gpus)) or None)
    single = _step_us(lambda: loss(model, moved(batch, device)), device)
    pipe.send((single, _step_us(lambda: loss(parallel, moved(whole, device)), device)))


def _step_us(loss: Callable[[], torch.Tensor], device: torch.device) -> float:
    """The median step, forward and backward."""
    times = []
    for _ in range(_WARM + _STEPS):
        begin = time.perf_counter()
        loss().backward()  # type: ignore[no-untyped-call]
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return median(times[_WARM:]) * 1e6
