"""Weights before the wrap and after steps, bit by bit over all ranks; and whether one fixed batch is learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ncclcheck.probes.facts.training import Agreement, Checks, Doubles, FixedBatch, TakenSteps, Trained
from ncclcheck.probes.training.course.watch import StepWatch
from ncclcheck.probes.training.equal.alike import MOST, agreement, of_all_ranks
from ncclcheck.probes.training.equal.own.alone import alone
from ncclcheck.probes.training.equal.own.beside import FollowedValues
from ncclcheck.probes.training.equal.seeds import SEED, own_generators
from ncclcheck.probes.training.equal.state import lasting, plain
from ncclcheck.probes.training.feed import moved
from ncclcheck.probes.training.loop import TrainingSetting, bare, stream, train_step, wrap

_STEPS = 20  # at most, of the steps that were asked for: replicas that drift do so with the first ones; chosen
_FIXED_STEPS = 10  # on one batch: chosen, the loss of a model that learns has fallen by then


def before_wrap(setting: TrainingSetting) -> Checks:
    """DDP repairs a difference without a word, by handing out rank 0's."""
    agreed = agreement(setting.peers, setting.model, lasting(setting.model))
    return Checks(before_wrap=agreed, doubles=_doubles(setting.model))


def _doubles(model: nn.Module) -> Doubles:
    """By where they begin: LSTMs keep theirs in one storage on GPUs, one behind the other."""
    places: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters():  # one that stands at two places is named once
        if (
            type(parameter) is nn.Parameter
            and parameter.layout is torch.strided
            and parameter.numel()
            and not parameter.is_meta
        ):
            places.setdefault(parameter.data_ptr(), []).append(plain(name)[:200])
    groups = [names[:MOST] for names in places.values() if len(names) > 1]
    return Doubles(parameters=len([*model.parameters()]), groups=groups[:MOST])


def trained(setting: TrainingSetting, model: nn.Module) -> Checks:
    """Steps on own batches; the model is left trained."""
    steps = min(setting.plan.steps, _STEPS)
    every = max(1, steps // 4)
    optimizer, batches = setting.optimizer(model), stream(setting)
    taken, after = 0, None
    seen: Agreement | None = None
    watch = _watch(setting, model)
    beside = None if watch is None else FollowedValues(setting, bare(model))
    while taken < steps and after is None:
        for _ in range(min(every, steps - taken)):
            if watch is None:
                train_step(setting, model, optimizer, batches)
            else:
                batch = next(batches)
                with watch.step(batch):
                    train_step(setting, model, optimizer, chain([batch], batches))
            taken += 1
        seen = agreement(setting.peers, bare(model), lasting(model))
        after = taken if any(not differing.local for differing in seen.differing) else None
        if setting.left() <= 0:
            break
    fewer = _fewer(setting, optimizer)
    assert seen is not None
    return Checks(
        trained=Trained(steps=taken, every=every, agreement=seen, after=after, taken=fewer),
        courses=[] if watch is None else [watch.course(setting, own=False)],
        beside=None if beside is None else beside.changes(taken, _loss(setting)),
    )


def _loss(setting: TrainingSetting) -> Callable[[Any], list[Tensor]]:
    """What the loss of the first batch is with a copy of the model, and then again: some values follow others."""

    def of(roots: Any) -> list[Tensor]:
        batch = moved(setting.first[0], setting.device)
        with alone(), own_generators(setting.device, SEED):
            return [setting.loss(roots[0], batch).detach() for _ in range(2)]

    return of


def _watch(setting: TrainingSetting, model: nn.Module) -> StepWatch | None:
    """What watches these steps; nothing of our own models, and the given step is watched by itself."""
    if setting.builtin or setting.plan.step:
        return None
    return StepWatch(model, {"loss": setting.loss})


def _fewer(setting: TrainingSetting, optimizer: Optimizer) -> list[TakenSteps]:
    """The ranks of which the optimizer took fewer steps than others."""
    mine = max((int(state["step"]) for state in optimizer.state.values() if "step" in state), default=0)
    steps = [int(count) for count in of_all_ranks(setting.peers, mine)]
    return [TakenSteps(rank=rank, steps=count) for rank, count in enumerate(steps) if count < max(steps)][:MOST]


def fixed_batch(setting: TrainingSetting) -> Checks:
    """Whether the loss of a batch falls that comes again and again: on fresh data it need not."""
    model = wrap(setting, setting.fresh_model())
    optimizer = setting.optimizer(model)
    batch = setting.first[0]
    losses: list[float] = []
    for _ in range(_FIXED_STEPS):
        with own_generators(setting.device, SEED):  # dropout that is another each time would hide what is learned
            losses.append(float(train_step(setting, model, optimizer, repeat(batch))))
        if setting.left() <= 0:
            break
    every = setting.peers.worst([losses[0], losses[-1]])
    first, last = (loss if math.isfinite(loss) else None for loss in every)
    return Checks(fixed_batch=FixedBatch(steps=len(losses), first=first, last=last))
