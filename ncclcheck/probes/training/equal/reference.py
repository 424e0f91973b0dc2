"""The gradients of the wrapped model against those of the bare one, and whether loss and gradients are finite."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor, nn

from ncclcheck.probes.facts.training import Checks, Gradients, NotFiniteStep, Precision, RankError, Unchecked
from ncclcheck.probes.training import given
from ncclcheck.probes.training.course.operations import Operations, compiled
from ncclcheck.probes.training.course.watch import not_finite_part
from ncclcheck.probes.training.equal import joined
from ncclcheck.probes.training.equal.alike import MOST, of_all_ranks
from ncclcheck.probes.training.equal.seeds import SEED, own_generators
from ncclcheck.probes.training.equal.state import gradients, of_16_bits, tensors
from ncclcheck.probes.training.equal.streams import finite
from ncclcheck.probes.training.feed import Batch, moved, samples_of
from ncclcheck.probes.training.loop import TrainingSetting, accumulate, wrap

_TOLERANCES = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 5e-2}

Grads = dict[str, Tensor]


@dataclass(frozen=True)
class _ModelPass:
    """What a forward and a backward pass gave."""

    loss: float
    gradients: Grads


def one_batch(setting: TrainingSetting) -> Checks:
    """One pass of each rank on its own batch, and of one process on all of them joined."""
    batch = setting.first[0]
    model = _as_rank_0_has_it(setting)
    operations = Operations(model)
    with nullcontext() if compiled(model) else operations:
        alone = _run(setting, model, [batch])
    precision = _precision(setting, alone, batch, operations)
    if why := _unrepeatable(setting, alone, [batch]):
        return Checks(precision=precision, unchecked=[_not("gradients", why)])
    ours, seen = _against_the_mean(setting, alone, [batch])
    all_of_them, why = joined.over_ranks(setting, [batch])
    by_tokens = _by_tokens(setting, alone, batch)
    error, explained = 0.0, False
    if all_of_them and setting.peers.rank == 0:
        wanted = _run(setting, setting.fresh_model(), all_of_them).gradients
        error = _distance(ours, wanted)[0]
        explained = bool(by_tokens) and _distance(by_tokens, wanted)[0] <= seen.tolerance
    counts = of_all_ranks(setting.peers, [joined.tokens(batch), explained])
    if counts[0][1]:
        seen = replace(seen, tokens=[count for count, _ in counts][:MOST])
    return Checks(precision=precision, gradients=_with_joined(setting, seen, error, why))


def _by_tokens(setting: TrainingSetting, alone: _ModelPass, batch: Batch) -> Grads:
    """The mean over ranks by how many tokens each has; nothing where all have as many."""
    counts = of_all_ranks(setting.peers, joined.tokens(batch))
    if len({*counts}) == 1 or 0 in counts:
        return {}
    share = counts[setting.peers.rank] * len(counts) / sum(counts)
    return _mean({name: tensor * share for name, tensor in alone.gradients.items()})


def accumulation(setting: TrainingSetting) -> Checks:
    """Micro-batches of which all but the last stay on the rank, against the bare model and against one batch."""
    batches = setting.first
    alone = _run(setting, _as_rank_0_has_it(setting), batches)
    if why := _unrepeatable(setting, alone, batches):
        return Checks(unchecked=[_not("accumulation", why)])
    ours, seen = _against_the_mean(setting, alone, batches)
    together, why = joined.of_one_rank(setting, batches)
    error = 0.0
    if together is not None:
        wanted = _run(setting, _as_rank_0_has_it(setting), [together]).gradients
        error = _distance(ours, _mean(wanted))[0]
        counts = [joined.tokens(batch) for batch in batches]
        by_tokens = _mean_by_tokens(setting, batches, counts)
        ranks = of_all_ranks(setting.peers, [_distance(by_tokens, wanted)[0] <= seen.tolerance, counts])
        if all(explained for explained, _ in ranks):
            seen = replace(seen, tokens=next((each[:MOST] for _, each in ranks if len({*each}) > 1), []))
    return Checks(accumulation=_with_joined(setting, seen, error, why))


def _mean_by_tokens(setting: TrainingSetting, batches: list[Batch], counts: list[int]) -> Grads:
    """Of this rank's micro-batches, each by how many tokens it has."""
    every = counts if all(counts) else [1] * len(counts)
    sums: Grads = {}
    for batch, count in zip(batches, every, strict=True):
        for name, tensor in _run(setting, _as_rank_0_has_it(setting), [batch]).gradients.items():
            part = tensor * (count / sum(every))
            sums[name] = sums[name] + part if name in sums else part
    return sums


def _run(setting: TrainingSetting, model: nn.Module, batches: list[Batch]) -> _ModelPass:
    """With generators of its own, always the same: what is random in the model is so alike each time."""
    with own_generators(setting.device, SEED):
        loss = accumulate(setting, model, iter(batches), len(batches))
    return _ModelPass(float(loss), gradients(model))


def _as_rank_0_has_it(setting: TrainingSetting) -> nn.Module:
    """The bare model with the weights that DDP hands out."""
    model = setting.fresh_model()
    if setting.plan.strategy == "ddp":
        for _, tensor in tensors(model):
            dist.broadcast(tensor.detach(), src=0)
    return model


def _unrepeatable(setting: TrainingSetting, first: _ModelPass, batches: list[Batch]) -> str:
    """Why gradients cannot be compared: the bare model itself does not repeat them."""
    again = _run(setting, _as_rank_0_has_it(setting), batches)
    errors = of_all_ranks(setting.peers, _distance(again.gradients, first.gradients)[0])
    if not all(map(math.isfinite, errors)):
        return "they are not finite"
    if max(errors) <= _tolerance(setting) / 10:
        return ""
    rank = errors.index(max(errors))
    return f"the model alone gives others for the same batch and seed (by {errors[rank]:.2g} on rank {rank})"


def _tolerance(setting: TrainingSetting) -> float:
    """Of the norm; weights of 16 bits round as autocast does."""
    return _TOLERANCES["bf16" if of_16_bits(setting.model) else setting.plan.precision]


def _against_the_mean(
    setting: TrainingSetting, alone: _ModelPass, batches: list[Batch]
) -> tuple[Grads, Gradients]:
    """What the wrapped model gives against the mean over ranks of what each computes alone."""
    wanted = _mean(alone.gradients)
    ours = _run(setting, wrap(setting, setting.fresh_model()), batches).gradients
    errors = [(error, name) for error, name in of_all_ranks(setting.peers, _distance(ours, wanted))]
    tolerance = _tolerance(setting)
    worst = sorted(range(len(errors)), key=lambda rank: -errors[rank][0])[:MOST]
    return ours, Gradients(
        tolerance=tolerance,
        micro_batches=len(batches),
        samples=sum(samples_of(batch) for batch in batches) * setting.peers.world,
        errors=[_rank_error(rank, *errors[rank]) for rank in worst],
        wrong=sum(not error <= tolerance for error, _ in errors),
        hooked=[name[:200] for name in given.hooked(setting.model)[:MOST]],
    )


def _rank_error(rank: int, error: float, name: str) -> RankError:
    return RankError(rank=rank, error=error if math.isfinite(error) else None, parameter=name[:200])


def _mean(own: Grads) -> Grads:
    """Over ranks; by plain all_reduce, not by the wrap."""
    means = {}
    for name, tensor in own.items():
        total = tensor.clone()
        dist.all_reduce(total)
        means[name] = total / dist.get_world_size()
    return means


def _distance(got: Grads, wanted: Grads) -> tuple[float, str]:
    """The norm of the difference as a share of the norm wanted, and the parameter that adds most to it."""
    apart = {name: float(torch.linalg.vector_norm(tensor - wanted[name])) for name, tensor in got.items()}
    norm = math.hypot(*(float(torch.linalg.vector_norm(tensor)) for tensor in wanted.values()))
    error = math.hypot(*apart.values())
    name = max(apart, key=lambda leaf: apart[leaf], default="")
    return (error / norm if norm and math.isfinite(norm) else error), name


def _with_joined(setting: TrainingSetting, seen: Gradients, error: float, why: str) -> Gradients:
    (worst,) = setting.peers.worst([error if math.isfinite(error) else 1e9])
    return replace(seen, not_joined=why) if why else replace(seen, joined=worst)


def _not(check: str, why: str) -> Unchecked:
    return Unchecked(check=check, why=why)


def _precision(setting: TrainingSetting, alone: _ModelPass, batch: Batch, operations: Operations) -> Precision:
    """Which ranks have something infinite, and how the loss differs from that in fp32."""
    bad = [name for name, tensor in alone.gradients.items() if not bool(torch.isfinite(tensor).all())]
    with own_generators(setting.device, SEED), torch.no_grad():
        full = float(setting.loss(setting.fresh_model(), moved(batch, setting.device)))
    part = not_finite_part(batch)
    origin = part or " at ".join(
        module for module in (operations.origin if operations.origin[0] else operations.root) if module
    )
    mine = [math.isfinite(alone.loss), [name[:200] for name in bad[:MOST]], len(bad), origin[:200], bool(part)]
    ranks = of_all_ranks(setting.peers, mine)
    finites = [
        NotFiniteStep(rank=rank, loss=not finite, parameters=names, origin=origin, of_batch=of_batch)
        for rank, (finite, names, count, origin, of_batch) in enumerate(ranks)
        if count or not finite
    ]
    return Precision(
        precision=setting.plan.precision,
        loss=finite(alone.loss),
        full=finite(full),
        bad=finites[:MOST],
        count=len(finites),
    )
