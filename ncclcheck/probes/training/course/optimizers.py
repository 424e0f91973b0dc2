"""What the optimizers of a step hold and do: parameters that none holds, stale gradients, why nothing changes."""

from __future__ import annotations

import gc
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ncclcheck.probes.training.equal.state import plain

Idle = Literal["", "others", "rate", "never", "nothing"]


class Optimizers:
    """Looks at each step of an optimizer of this process, from when it is made until `end`.

    found: one was given gradients that were added up on some that it had taken already. steps: of all.
    """

    def __init__(self, model: nn.Module, *, stepped: bool) -> None:
        self.found, self.steps = False, 0
        self._model = model
        self._stepped, self._stale = stepped, False
        self._got: set[str] = set()
        self._one = next((one for one in model.parameters() if one.requires_grad), None)
        if self._one is not None:
            self._one.register_hook(self._arrives)  # type: ignore[no-untyped-call]
        self._handle = register_optimizer_step_pre_hook(self._steps)

    def _arrives(self, _gradient: Tensor) -> None:
        held = self._one.grad if self._one is not None else None
        full = held is not None and bool(held.detach().to_dense().any())
        self._stale = full and (self._stepped or self._stale)
        self._stepped = False

    def _steps(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self.steps += 1
        self._got |= {
            name for name, one in self._model.named_parameters() if one.grad is not None and one.grad.any()
        }
        if any(one is self._one for group in optimizer.param_groups for one in group["params"]):
            self.found |= self._stale
            self._stepped = True

    def end(self) -> None:
        """Look no more."""
        self._handle.remove()

    def unheld(self) -> tuple[list[str], float]:
        """Parameters that got gradients and stand in no optimizer, and their share of all that are trained."""
        held = {id(one) for optimizer in _alive() for group in optimizer.param_groups for one in group["params"]}
        names = dict(self._model.named_parameters())
        if not any(id(one) in held for one in names.values()):
            return [], 0.0  # it holds another model's: that none changes is said already
        without = [name for name in self._got if id(names[name]) not in held]
        trained = sum(one.numel() for one in names.values() if one.requires_grad)
        share = sum(names[name].numel() for name in without) / max(1, trained)
        return [plain(name) for name in names if name in without], share

    def idle(self) -> Idle:
        """Why no parameter changed, where that is known."""
        mine = {id(one) for one in self._model.parameters()}
        groups = [
            group
            for one in _alive()
            for group in one.param_groups
            if any(id(each) in mine for each in group["params"])
        ]
        if not groups:
            return "others"
        if not self.steps:
            return "never"
        if all(float(group.get("lr", 1.0)) == 0.0 for group in groups):
            return "rate"
        return "" if self._got else "nothing"


def _alive() -> list[Optimizer]:
    return [one for one in gc.get_objects() if issubclass(type(one), Optimizer)]


class Mood:
    """Whether the model is in eval() in passes that are meant to train."""

    def __init__(self, model: nn.Module) -> None:
        self.passes = self.evaluating = 0
        self._handle = model.register_forward_pre_hook(self._looks)
        self._model = model

    def _looks(self, module: nn.Module, _given: Any) -> None:
        if torch.is_grad_enabled():
            self.passes += 1
            self.evaluating += not module.training

    def end(self) -> list[str]:
        """The layers that eval() changes, where it is on in most passes that train; look no more."""
        self._handle.remove()
        if 2 * self.evaluating <= self.passes:
            return []
        return [
            plain(name)
            for name, one in self._model.named_modules()
            if isinstance(one, nn.modules.batchnorm._BatchNorm)
            or (isinstance(one, nn.modules.dropout._DropoutNd) and one.p > 0)
        ]
