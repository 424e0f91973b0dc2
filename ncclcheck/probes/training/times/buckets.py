"""What DDP sends in a step, sent alone: communication cannot take less time than this beside the backward pass."""

from __future__ import annotations

import re
import time
from itertools import repeat
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ncclcheck.probes.facts.training import Communication
from ncclcheck.probes.job.operations import barrier
from ncclcheck.probes.job.timing import summary
from ncclcheck.probes.training.feed import Batch
from ncclcheck.probes.training.loop import TrainingSetting, wrap
from ncclcheck.probes.training.times.twin import TwinLoop
from ncclcheck.probes.training.wraps.sharding import Unsupported

_WARM, _ROUNDS = 3, 12  # all-reduces of all buckets that are not counted, and those whose times are told: chosen
_TOLD = 12  # buckets in JSON: chosen, the first and the last matter


def alone(setting: TrainingSetting, batch: Batch) -> Communication:
    """All buckets, all-reduced one after the other with nothing beside them."""
    if setting.plan.strategy != "ddp":
        raise Unsupported(f"{setting.plan.strategy} has no buckets")
    sizes = _sizes(setting, batch)
    tensors = [torch.zeros(max(1, size // 4), device=setting.device) for size in sizes]
    times = [_once(tensors, setting.device) for _ in range(_WARM + _ROUNDS)][_WARM:]
    slowest = summary(setting.peers.worst(times))
    return Communication(buckets=_folded(sizes), alone_us=slowest)


def _sizes(setting: TrainingSetting, batch: Batch) -> list[int]:
    """Bytes of the buckets as DDP makes them anew after its first step; the same on all ranks."""
    model = wrap(setting, setting.fresh_model())
    TwinLoop.of(setting, model, repeat(batch)).run(2)
    sizes = ",".join(map(str, _logged(model)))
    return [int(size) for size in setting.peers.first_text(sizes).split(",")]


def _logged(model: nn.Module) -> list[int]:
    """torch's own account of it is private: without it, one bucket that holds all gradients."""
    tell = getattr(model, "_get_ddp_logging_data", dict)
    data: dict[str, Any] = tell()
    for name in ("rebuilt_bucket_sizes", "bucket_sizes"):
        if sizes := [int(size) for size in re.findall(r"\d+", str(data.get(name, ""))) if int(size)]:
            return _folded(sizes)
    return [
        sum(
            parameter.numel() * parameter.element_size()
            for parameter in model.parameters()
            if parameter.requires_grad
        )
    ]


def _folded(sizes: list[int]) -> list[int]:
    """At most so many; the middle ones are one. The last one counts most: nothing is left to hide it."""
    if len(sizes) <= _TOLD:
        return sizes
    head, middle, tail = sizes[: _TOLD // 2], sizes[_TOLD // 2 : 1 - _TOLD // 2], sizes[1 - _TOLD // 2 :]
    return [*head, sum(middle), *tail]


def _once(tensors: list[torch.Tensor], device: torch.device) -> float:
    """Seconds of this rank, from a barrier to the last result."""
    barrier(device)
    begin = time.perf_counter()
    for tensor in tensors:
        dist.all_reduce(tensor)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin
