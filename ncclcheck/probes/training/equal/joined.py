"""Batches joined into one: those of all ranks, or several of one rank; where that can be compared at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ncclcheck.probes.training.equal.alike import of_all_ranks
from ncclcheck.probes.training.equal.seeds import SEED, own_generators
from ncclcheck.probes.training.feed import Batch, mapped, moved, samples_of, tensors_of
from ncclcheck.probes.training.loop import TrainingSetting

_MOST_RANKS = 16  # whose batches one process computes: chosen, it takes as many times as long as a step
_MOST_BYTES = 64 * 2**20  # of all batches, which every rank then holds: chosen
PLACED = "the loss depends on the order of the samples of a batch, as where each place has its own noise"
_ROUNDING = 1e-3  # of a loss whose samples are added up in another order


def over_ranks(setting: TrainingSetting, batches: Sequence[Batch]) -> tuple[list[Batch], str]:
    """Of each of these, one batch of all that the ranks have; or why there is none."""
    if why := _unjoinable(setting, batches[0]):
        return [], why
    joined = []
    for batch in batches:
        if isinstance(parts := gathered(setting, batch), str):
            return [], parts
        joined.append(_cat(parts))
    return joined, ""


def of_one_rank(setting: TrainingSetting, batches: Sequence[Batch]) -> tuple[Batch | None, str]:
    """One batch of several, or why there is none; all ranks get the same answer."""
    why = _unjoinable(setting, batches[0])
    alike = all(_shapes(batch) == _shapes(batches[0]) for batch in batches)
    if not why and not all(of_all_ranks(setting.peers, alike)):
        why = "micro-batches have different shapes"
    return (None, why) if why else (_cat(batches), "")


def gathered(setting: TrainingSetting, batch: Batch) -> list[Batch] | str:
    """The batches of all ranks, by rank; or why they cannot be had."""
    peers, mine = setting.peers, tensors_of(batch)
    bytes_ = sum(tensor.numel() * tensor.element_size() for tensor in mine) * peers.world
    if peers.world > _MOST_RANKS or bytes_ > _MOST_BYTES:
        return f"the batches of {peers.world} ranks are too much for one process"
    if len({str(shapes) for shapes in of_all_ranks(peers, _shapes(batch))}) > 1:
        return "the batches of ranks have different shapes"
    copies = [_all_of(tensor.to(setting.device).contiguous(), peers.world) for tensor in mine]
    return [_filled(batch, [tensors[rank] for tensors in copies]) for rank in range(peers.world)]


def _all_of(mine: Tensor, world: int) -> list[Tensor]:
    tensors = [torch.empty_like(mine) for _ in range(world)]
    plain = mine.view(torch.uint8) if mine.dtype is torch.bool else mine
    dist.all_gather([tensor.view(plain.dtype) for tensor in tensors], plain)
    return tensors


def _filled(batch: Batch, tensors: list[Tensor]) -> Batch:
    """The batch with these tensors for its own."""
    rest = iter(tensors)
    return mapped(batch, lambda _one: next(rest))


def _cat(batches: Sequence[Batch]) -> Batch:
    columns = zip(*(tensors_of(batch) for batch in batches), strict=True)
    return _filled(batches[0], [torch.cat(column) for column in columns])


def _shapes(batch: Batch) -> list[str]:
    return [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in tensors_of(batch)]


def _unjoinable(setting: TrainingSetting, batch: Batch) -> str:
    """What makes a joined batch another thing than its parts; the same answer on all ranks."""
    norms = [name for name, module in setting.model.named_modules() if isinstance(module, _BatchNorm)]
    if norms:
        return f"BatchNorm sees the batch of its rank only ({norms[0] or 'the model'})"
    if setting.called:
        return f"the model or the loss calls {setting.called[0]} itself"
    moods = of_all_ranks(setting.peers, _mood(setting, batch))
    if "restless" in moods:
        return "the model gives another loss for the same batch and seed each time: it counts, or changes itself"
    if "placed" in moods:
        return PLACED
    if "random" in moods:
        drops = [
            name
            for name, module in setting.model.named_modules()
            if "Dropout" in type(module).__name__ or (isinstance(module, nn.RNNBase) and module.dropout)
        ]
        return f"the model draws random numbers ({drops[0] if drops else 'no Dropout module does'})"
    samples = samples_of(batch)
    ragged = any(tensor.dim() == 0 or tensor.shape[0] != samples for tensor in tensors_of(batch))
    return (
        "the batch holds tensors that are not one entry a sample"
        if any(of_all_ranks(setting.peers, ragged))
        else ""
    )


def _mood(setting: TrainingSetting, batch: Batch) -> str:
    """Whether the loss depends on the seed, on how often it was asked for, or on the order of samples."""
    model, losses = setting.fresh_model(), list[float]()
    for seed in (SEED, SEED, SEED + 1):
        with own_generators(setting.device, seed):
            losses.append(_loss(setting, model, batch))
    first, again, other = losses
    if again != first:
        return "restless"
    if other != first:
        return "random"
    with own_generators(setting.device, SEED):
        return "placed" if is_placed(first, batch, lambda given: _loss(setting, model, given)) else ""


def _loss(setting: TrainingSetting, model: nn.Module, batch: Batch) -> float:
    with torch.no_grad():
        return float(setting.loss(model, moved(batch, setting.device)))


def is_placed(loss: float, batch: Batch, measure: Callable[[Batch], float]) -> bool:
    """Whether the loss of a batch is another when its samples come in reverse; not where they cannot."""
    try:
        placed = measure(backwards(batch))
    except Exception:  # lengths must be sorted, or entries are not samples
        return False
    return abs(placed - loss) > _ROUNDING * abs(loss)


def backwards(batch: Batch) -> Batch:
    """The same samples, the last one first: a mean over them is the same. As it is where rows are no samples."""
    count = samples_of(batch)
    if any(tensor.dim() == 0 or tensor.shape[0] != count for tensor in tensors_of(batch)):
        return batch
    return mapped(batch, lambda tensor: tensor.flip(0))


def tokens(batch: Batch) -> int:
    """The entries of its whole numbers that a loss counts: not the negative ones, such as -100; 0: it has none."""
    marked = [tensor for tensor in tensors_of(batch) if tensor.dtype is torch.int64 and bool((tensor < 0).any())]
    return sum(int((tensor >= 0).sum()) for tensor in marked)
