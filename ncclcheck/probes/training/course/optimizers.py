"""What the optimizers of a step hold and do: parameters that none holds, stale gradients, why nothing changes."""

from __future__ import annotations

import gc
import inspect
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ncclcheck.probes.training.equal.state import plain

_LEAST_REMADE = 3  # steps; many optimizers that take one step each are no layers of one step
_LEAST_ZERO = 4  # steps; those of LoRA's first matrix are 0 in the first one only
_LEAST_IDLE = 2  # steps in a row in eval() at the end; one could be meant

Idle = Literal["", "others", "rate", "never", "nothing", "rounded"]


class _Arrivals:
    """Gradients as they come to one parameter. stale: they were added up on some that were taken already.

    lost: since the optimizer's last step so many were there, and gone when the next came, on the same weights.
    """

    def __init__(self, parameter: nn.Parameter, *, stepped: bool) -> None:
        self.parameter, self.stepped, self.stale, self.lost = parameter, stepped, False, 0
        self._arrived = self._version = 0
        self._waits = False
        parameter.register_hook(self._arrives)  # type: ignore[no-untyped-call]

    def _arrives(self, _gradient: Tensor) -> None:
        tensor = self.parameter.grad
        full = tensor is not None and bool(tensor.detach().to_dense().any())
        self.stale = full and (self.stepped or self.stale)
        self.lost += self._waits and not full and self._version == self.parameter._version
        self.stepped, self._waits, self._version = False, True, self.parameter._version

    def taken(self) -> bool:
        """An optimizer takes what is there; whether it is stale."""
        self.stepped, self._waits, self.lost = True, False, 0
        return self.stale


class Optimizers:
    """Looks at each step of an optimizer of this process, from when it is made until `end`.

    reused: one was given gradients that were added up on some that it had taken already. steps: of all. rates: the
    largest learning rate of each step of an optimizer that holds parameters of the model. got: those of its
    parameters that had a gradient. call: of the given step, which the caller counts up; calls: those with a step.
    """

    def __init__(self, model: nn.Module, *, stepped: bool) -> None:
        self.reused, self.steps, self.rates = False, 0, list[float]()
        self.call, self.calls = 1, {1} if stepped else set[int]()
        self._model = model
        self._lost: list[int] = []
        self._pursued = False  # inputs want gradients themselves, as in adversarial training
        self._known: WeakSet[Optimizer] = WeakSet()
        self._made = 0
        self._call = ""
        self.got: set[str] = set()
        self._had: set[str] = set()
        parameter = next((trained for trained in model.parameters() if trained.requires_grad), None)
        self._arrivals = [] if parameter is None else [_Arrivals(parameter, stepped=stepped)]
        self._inputs = model.register_forward_pre_hook(self._asks)
        self._handle = register_optimizer_step_pre_hook(self._steps)

    def _asks(self, _model: nn.Module, given: Any) -> None:
        self._pursued |= any(isinstance(value, Tensor) and value.requires_grad for value in given)

    def _steps(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self.steps += 1
        self.calls.add(self.call)
        if optimizer not in self._known:
            self._known.add(optimizer)
            self._call = _call(optimizer) if self._own_groups(optimizer) else self._call
            self._made += any(group.get("betas") or group.get("momentum") for group in optimizer.param_groups)
        self._had |= {
            plain(name) for name, parameter in self._model.named_parameters() if parameter.grad is not None
        }
        self.got |= {
            plain(name)
            for name, parameter in self._model.named_parameters()
            if parameter.grad is not None and parameter.grad.any()
        }
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if self._arrivals and id(self._arrivals[0].parameter) in stepped:
            self.rates.append(max(float(group.get("lr", 1.0)) for group in optimizer.param_groups))
            self._lost.append(self._arrivals[0].lost)
        for each in self._arrivals:
            if id(each.parameter) in stepped:
                self.reused |= each.taken()
        self._follow(stepped)

    def _follow(self, ids: set[int]) -> None:
        """The first parameter of one that holds none of those that are followed, as the second of a GAN."""
        if any(id(each.parameter) in ids for each in self._arrivals):
            return
        mine = [
            parameter for parameter in self._model.parameters() if parameter.requires_grad and id(parameter) in ids
        ]
        self._arrivals += [_Arrivals(parameter, stepped=True) for parameter in mine[:1]]

    def lost(self) -> int:
        """The fewest gradients that were cleared before any step of the one optimizer there is."""
        return 0 if self._pursued or len(self._known) != 1 else min(self._lost, default=0)

    def end(self) -> None:
        """Look no more."""
        self._handle.remove()
        self._inputs.remove()

    def zero(self) -> list[str]:
        """Parameters whose gradient was there, and exactly 0 in all of enough steps."""
        return sorted(self._had - self.got) if self.steps >= _LEAST_ZERO else []

    def remade(self) -> int:
        """The steps, where an optimizer with moments was made for each, which has forgotten them by the next."""
        return self.steps if self.steps >= _LEAST_REMADE and self._made == self.steps else 0

    def unheld(self) -> tuple[list[str], float]:
        """Parameters that got gradients and stand in no optimizer, and their share of all that are trained."""
        stepped = {
            id(parameter)
            for optimizer in alive()
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        names = {plain(name): parameter for name, parameter in self._model.named_parameters()}
        if not any(id(parameter) in stepped for parameter in names.values()):
            return [], 0.0  # it holds another model's: that none changes is said already
        without = [name for name in self.got if id(names[name]) not in stepped]
        trained = sum(parameter.numel() for parameter in names.values() if parameter.requires_grad)
        share = sum(names[name].numel() for name in without) / max(1, trained)
        return [name for name in names if name in without], share

    def call_of_one(self) -> str:
        """How one that took a step would be made again; one that holds parameters of the model before others."""
        made = max(self._known, key=lambda optimizer: bool(self._own_groups(optimizer)), default=None)
        return self._call or (_call(made) if made is not None else "")

    def _own_groups(self, optimizer: Optimizer) -> list[dict[str, Any]]:
        """Those with a parameter of the model."""
        mine = {id(parameter) for parameter in self._model.parameters()}
        return [group for group in optimizer.param_groups if any(id(each) in mine for each in group["params"])]

    def idle(self) -> Idle:
        """Why no parameter changed, where that is known."""
        groups = [group for optimizer in alive() for group in self._own_groups(optimizer)]
        if not groups:
            return "others"
        if not self.steps:
            return "never"
        if not any(self.rates) if self.rates else all(float(group.get("lr", 1.0)) == 0.0 for group in groups):
            return "rate"
        if not self.got:
            return "nothing"
        kinds = {parameter.dtype for parameter in self._model.parameters() if parameter.requires_grad}
        return "rounded" if kinds <= {torch.bfloat16, torch.float16} else ""


def _call(optimizer: Optimizer) -> str:
    """Of its first group, what is not as the class has it; no schedule has changed `initial_lr`."""
    kind, group = type(optimizer), optimizer.param_groups[0]
    name = f"torch.optim.{kind.__name__}" if kind.__module__.startswith("torch.optim.") else kind.__name__
    values = {**group, "lr": group.get("initial_lr", group.get("lr"))}
    given = [
        f"{each.name}={values[each.name]!r}"
        for each in inspect.signature(kind).parameters.values()
        if isinstance(values.get(each.name), (int, float, tuple)) and values[each.name] != each.default
    ]
    return f"{name}({', '.join(['model.parameters()', *given])})"


def alive() -> list[Optimizer]:
    """All of this process."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), Optimizer)]


class Mood:
    """Whether the model is in eval() in passes that are meant to train; `next` before each step but the first.

    since: the step (from 1) from which on it never trained again, 0: it did, or it never had.
    """

    def __init__(self, model: nn.Module) -> None:
        self.since = 0
        self._steps: list[list[bool]] = [[]]
        self._handle = model.register_forward_pre_hook(self._looks)
        self._model = model

    def next(self) -> None:
        """Another step begins."""
        self._steps.append([])

    def _looks(self, module: nn.Module, _given: Any) -> None:
        if torch.is_grad_enabled():
            self._steps[-1].append(module.training)

    def end(self) -> list[str]:
        """The layers that eval() changes, where it is on in most passes that train, or from some step on; look no
        more.
        """
        self._handle.remove()
        passes = [called for step in self._steps for called in step]
        trains = max((number for number, step in enumerate(self._steps, 1) if any(step)), default=0)
        idle = sum(bool(step) for step in self._steps[trains:])
        self.since = trains + 1 if trains and idle >= _LEAST_IDLE else 0
        if 2 * sum(passes) >= len(passes) and not self.since:
            return []
        return [
            plain(name)
            for name, module in self._model.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
            or (isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0)
        ]
