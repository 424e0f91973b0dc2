"""The random generators of ranks, parameters that no batch reaches, and a metric that is summed up over ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from ncclcheck.probes.facts.training import (
    Checks,
    Generators,
    Metric,
    SharedGenerator,
    Unchecked,
    Unused,
    UnusedParameter,
)
from ncclcheck.probes.training.equal.alike import MOST, of_all_ranks
from ncclcheck.probes.training.equal.joined import PLACED, gathered, is_placed
from ncclcheck.probes.training.equal.seeds import states
from ncclcheck.probes.training.feed import Batch, moved, samples_of
from ncclcheck.probes.training.loop import TrainingSetting, bare


def generators(setting: TrainingSetting) -> Checks:
    """Those of ranks after the data were made, and now, after steps."""
    made, now = (
        of_all_ranks(setting.peers, setting.generators),
        of_all_ranks(setting.peers, states(setting.device)),
    )
    shared = [*_shared(made, "made"), *_shared(now, "trained")]
    workers = setting.feed.loader.num_workers
    return Checks(generators=Generators(looked_at=sorted(made[0]), shared=shared[:MOST], workers=workers))


def _shared(ranks: Sequence[Mapping[str, str]], when: Literal["made", "trained"]) -> list[SharedGenerator]:
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, streams in enumerate(ranks):
        for name, state in streams.items():
            groups[name, state].append(rank)
    return [
        SharedGenerator(generator=name, ranks=sharers[:MOST], count=len(sharers), when=when)
        for (name, _), sharers in groups.items()
        if len(sharers) > 1
    ]


def unused(setting: TrainingSetting) -> Checks:
    """What the backward passes of the bare model left without a gradient, as all ranks said when it was made."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, names in enumerate(setting.unreached):
        for name in names:
            ranks[name].append(rank)
    streams = [
        UnusedParameter(
            name=name,
            ranks=those[:MOST],
            everywhere=len(those) == setting.peers.world,
            varies=setting.varying.get(name, ""),
        )
        for name, those in ranks.items()
    ]
    parameters = sum(parameter.requires_grad for parameter in setting.model.parameters())
    return Checks(
        unused=Unused(
            parameters=parameters,
            count=len(streams),
            unused=streams[:MOST],
            unregistered=setting.unregistered[:MOST],
        )
    )


def metric(setting: TrainingSetting, model: nn.Module) -> Checks:
    """The mean loss of a trained model, as ranks sum it up and as one process computes it."""
    batch = setting.first[0]
    parts = "no process holds the whole model" if model is bare(model) else gathered(setting, batch)
    if setting.called:
        parts = f"the model or the loss calls {setting.called[0]} itself"
    if isinstance(parts, str):
        return Checks(unchecked=[Unchecked(check="metric", why=parts)])
    model.eval()
    mine = [_summed(setting, model, [batch]) for _ in range(2)]  # by the wrap, which hands out rank 0's buffers
    why = _useless([loss for loss, _ in mine])
    if not why and is_placed(mine[0][0], batch, lambda given: _summed(setting, model, [given])[0]):
        why = PLACED
    if why := next((reason for reason in of_all_ranks(setting.peers, why) if reason), ""):
        return Checks(unchecked=[Unchecked(check="metric", why=why)])
    total = torch.tensor(mine[0], dtype=torch.float64, device=setting.device)
    dist.all_reduce(total)
    whole, samples = _summed(setting, bare(model), parts) if setting.peers.rank == 0 else (0.0, 1)
    reduced = float(total[0] / total[1])
    return Checks(metric=Metric(samples=int(total[1]), reduced=finite(reduced), whole=finite(whole / samples)))


def _useless(losses: Sequence[float]) -> str:
    """Why a loss cannot be summed up."""
    if not all(map(math.isfinite, losses)):
        return "the loss is NaN"
    return "the model gives another loss each time" if len(set(losses)) > 1 else ""


def _summed(setting: TrainingSetting, model: nn.Module, batches: Sequence[Batch]) -> tuple[float, int]:
    """Loss times samples, and samples."""
    total, samples = 0.0, 0
    for batch in batches:
        with torch.no_grad():
            loss = float(setting.loss(model, moved(batch, setting.device)))
        total, samples = total + loss * samples_of(batch), samples + samples_of(batch)
    return total, samples


def finite(value: float) -> float | None:
    """The value, where it is a number."""
    return value if math.isfinite(value) else None
