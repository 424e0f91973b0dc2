"""Layers that normalise over the batch of their own rank, and how far that lies from the batch of all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ncclcheck.probes.facts import replace
from ncclcheck.probes.facts.training import BatchNorms
from ncclcheck.probes.training.feed import Batch, moved
from ncclcheck.probes.training.loop import TrainingSetting, autocast

_Local = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_NAMED, _MEASURED = 8, 32  # layers in a finding, layers whose inputs are added up: chosen, the first show it
_NONE = 2**30  # samples: more than any batch has, so that the least of all ranks is a real one


def seen(setting: TrainingSetting, batch: Batch) -> BatchNorms:
    """One forward pass of the bare model; all ranks take part, whatever their model does."""
    model = setting.fresh_model().train()
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, _Local)}
    synced = sum(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
    norms = BatchNorms(layers=len(layers), synced=synced, names=[*layers][:_NAMED])
    if not layers:
        return norms
    inputs = _Inputs.of(layers)
    with torch.no_grad(), autocast(setting):
        setting.loss(model, moved(batch, setting.device))
    least = -int(setting.peers.worst([-float(inputs.samples)])[0])
    sums = [inputs.sums.get(name, torch.zeros(3, layers[name].num_features)) for name in inputs.names]
    return replace(norms, samples=least if least < _NONE else None, off=_off(setting, sums))


@dataclass
class _Inputs:
    """What came into the layers: how much, its sum and the sum of its squares, by channel."""

    names: list[str]
    sums: dict[str, Tensor] = field(default_factory=dict)
    samples: int = _NONE

    @classmethod
    def of(cls, layers: Mapping[str, nn.Module]) -> _Inputs:
        """Looks on at the first layers."""
        inputs = cls([*layers][:_MEASURED])
        for name in inputs.names:
            layers[name].register_forward_pre_hook(lambda _layer, given, name=name: inputs.add(name, given[0]))
        return inputs

    def add(self, name: str, given: Tensor) -> None:
        """Samples x channels x whatever else."""
        by_channel = given.detach().transpose(0, 1).flatten(1).double().cpu()
        self.samples = min(self.samples, given.shape[0])
        count = torch.full((len(by_channel),), float(by_channel.shape[1]))
        self.sums[name] = torch.stack([count.double(), by_channel.sum(1), by_channel.square().sum(1)])


def _off(setting: TrainingSetting, mine: list[Tensor]) -> float | None:
    """Root mean square, over ranks, layers and channels, of the distance of means in standard deviations."""
    local = torch.cat([tensor.double() for tensor in mine], dim=1).to(setting.device)
    whole = local.clone()
    dist.all_reduce(whole)
    mean = whole[1] / whole[0]
    spread = (whole[2] / whole[0] - mean.square()).clamp(min=0).sqrt()
    apart = ((local[1] / local[0] - mean) / spread).square()
    kept = apart[torch.isfinite(apart)]
    total = torch.tensor([float(kept.sum()), float(kept.numel())], dtype=torch.float64, device=setting.device)
    dist.all_reduce(total)
    return float((total[0] / total[1]).sqrt()) if total[1] else None
