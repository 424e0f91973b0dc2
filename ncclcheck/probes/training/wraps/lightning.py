"""A LightningModule among plain modules: known by its training step, so that Lightning is not needed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ncclcheck.probes.dataloader.factory import FactoryError


class TrainingStep(nn.Module):
    """The training step as the `forward` that DDP looks at; Lightning's own strategies do the same."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.lightning = module

    def forward(self, batch: Any) -> Tensor:
        """The loss of a batch."""
        output = self.lightning.training_step(batch, 0)
        loss: Tensor = output["loss"] if isinstance(output, Mapping) else output
        if loss is None:
            raise FactoryError("training_step returned None for a batch: this rank alone would skip its step")
        return loss


def plain(made: nn.Module) -> nn.Module:
    """A module that has a training step, with that step as its forward pass; any other as it is."""
    return TrainingStep(made) if callable(getattr(made, "training_step", None)) else made
