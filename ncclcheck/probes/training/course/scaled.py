"""By how much a step scales its gradients between the backward pass and the optimizer, on each rank's piece."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

_EVEN = 1e-4  # of a factor: parameters that are clipped together are scaled by one number


class Scaled:
    """Looks at the pieces that this rank holds, in one step."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before: list[float] = []
        self._after: list[float] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """As long as it lasts."""
        kept: Callable[..., Any] = torch.autograd.backward

        def backward(*given: Any, **named: Any) -> None:
            kept(*given, **named)
            self._before = self._norms()

        def steps(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            self._after = self._after or self._norms()

        torch.autograd.backward, handle = backward, register_optimizer_step_pre_hook(steps)
        try:
            yield
        finally:
            torch.autograd.backward = kept
            handle.remove()

    def factor(self) -> float | None:
        """The one factor of all parameters; None where there is none, or nothing was seen."""
        pairs = [(before, after) for before, after in zip(self._before, self._after, strict=False) if before]
        if not pairs or not all(math.isfinite(before + after) for before, after in pairs):
            return None
        factors = [after / before for before, after in pairs]
        return factors[0] if max(factors) - min(factors) <= _EVEN * max(factors) else None

    def _norms(self) -> list[float]:
        return [
            0.0 if parameter.grad is None else float(_piece(parameter.grad).norm())
            for parameter in self._model.parameters()
        ]


def _piece(gradient: Tensor) -> Tensor:
    """What this rank holds of it; no collective."""
    local = getattr(gradient, "_local_tensor", gradient).detach()
    return (local.coalesce().values() if local.is_sparse else local).float()
