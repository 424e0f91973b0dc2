"""The faults of a training run that the user asked for, so that anybody can see what the report would say."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ncclcheck.probes.job import inject
from ncclcheck.probes.job.context import Context, Injection, TrainingFault

_LEAK = 4 * 2**20  # bytes a step, held for ever: chosen, far above an allocator's noise
_STRAY = 704 * 2**20  # bytes: chosen, far above what a process holds of itself
_FEWER = 2  # batches that the faulty rank lacks


@dataclass
class Faults:
    """What this rank does wrong. `tick` counts its steps, and ends it where that was asked for."""

    asked: dict[str, Injection]
    tick: Callable[[], None]
    _held: list[Tensor] = field(default_factory=list)
    _steps: WeakKeyDictionary[Optimizer, int] = field(default_factory=WeakKeyDictionary)

    @classmethod
    def of(cls, context: Context) -> Faults:
        """Those of this rank, and those of all."""
        mine = {
            injection.kind: injection
            for injection in context.plan.injected
            if injection.rank in (context.rank, -1)
        }
        ends = [injection for injection in context.plan.injected if injection.kind in ("hang", "crash")]
        plan = msgspec.structs.replace(context.plan, injected=ends)
        return cls(
            {str(kind): injection for kind, injection in mine.items()},
            inject.iterations(replace(context, plan=plan)),
        )

    def has(self, kind: TrainingFault) -> bool:
        """Whether this rank does it."""
        return kind in self.asked

    def seed(self, seed: int) -> int:
        """The seed of the model; another one with rank-init."""
        return seed + (1 + self.asked["rank-init"].rank if self.has("rank-init") else 0)

    def model(self, made: nn.Module) -> nn.Module:
        """With `unused`: with a layer that takes no part."""
        return _WithUnused(made) if self.has("unused") else made

    def batches(self, count: int) -> int:
        """How many of so many batches this rank has."""
        return max(1, count - _FEWER) if self.has("uneven") else count

    def before_batch(self) -> None:
        """slow-data."""
        if "slow-data" in self.asked:
            time.sleep(self.asked["slow-data"].seconds)

    def in_backward(self, loss: Tensor) -> None:
        """slow-rank: late in the backward pass, where DDP makes all ranks look alike."""
        if "slow-rank" in self.asked:
            seconds = self.asked["slow-rank"].seconds
            loss.register_hook(lambda _gradient: time.sleep(seconds))  # type: ignore[no-untyped-call]

    def skips(self, optimizer: Optimizer) -> bool:
        """skip-step: whether this is the step of the optimizer that this rank leaves out."""
        if not self.has("skip-step"):
            return False
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        return self._steps[optimizer] == self.asked["skip-step"].iteration

    def in_step(self, device: torch.device) -> None:
        """leak and stray."""
        if self.has("leak"):
            self._held.append(torch.ones(_LEAK // 4, device=device))
        if self.has("stray") and not self._held:
            self._held.append(_stray(device))


def _stray(device: torch.device) -> Tensor:
    """On another GPU where there is one, as a torch.load without map_location does it; else large, on the host."""
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if count > 1:
        return torch.ones(1, device=torch.device("cuda", ((device.index or 0) + 1) % count))
    return torch.ones(_STRAY // 4)


class _WithUnused(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.unused = nn.Linear(4, 4)

    def forward(self, *given: Tensor, **named: Tensor) -> object:
        """As the model itself."""
        return self.inner(*given, **named)
