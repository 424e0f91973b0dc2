"""The gradients as a backward pass leaves them, before the step does anything else with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ncclcheck.probes.training.equal.state import fingerprint, plain


class Averaged:
    """prints: by parameter, a hash of the gradient after the last backward pass."""

    def __init__(self, model: nn.Module) -> None:
        self.prints: dict[str, int] = {}
        self._model = model

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """As long as it lasts."""
        kept = torch.autograd.backward

        def backward(*given: Any, **named: Any) -> None:
            kept(*given, **named)
            self.prints = {
                plain(name): fingerprint(parameter.grad.to_dense())
                for name, parameter in self._model.named_parameters()
                if type(parameter.grad) is torch.Tensor
            }

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = kept
