"""Model, data and loss of the plan: built in, or the user's own by MODULE:NAME."""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ncclcheck.probes.dataloader.factory import FactoryError, FactoryLoader, find, resolve
from ncclcheck.probes.job.context import DataPlan, TrainingPlan
from ncclcheck.probes.training import models
from ncclcheck.probes.training.equal.own.entered import NoBackward
from ncclcheck.probes.training.equal.seeds import SEED, own_generators
from ncclcheck.probes.training.equal.state import Alone, bare
from ncclcheck.probes.training.feed import Batch, distributed
from ncclcheck.probes.training.wraps import lightning

_EPOCH = 4  # steps at least, of the built-in data
_WRAPPERS = ("accelerate", "lightning", "pytorch_lightning")  # each gives a plain loader a sampler for its ranks


def is_builtin(plan: TrainingPlan) -> bool:
    """Whether nothing of it is the user's own."""
    return plan.model in models.MODELS and not plan.data and not plan.loss and not plan.step


def enter(plan: TrainingPlan) -> None:
    """Where the user trains: their code may name files relative to it."""
    if not is_builtin(plan):
        os.chdir(plan.directory)


def model(plan: TrainingPlan) -> nn.Module:
    """A new model. Raises FactoryError, and whatever the user's factory raises."""
    make = models.MODELS.get(plan.model) or find(plan.model, plan.directory)
    made = make if isinstance(make, nn.Module) else make(**plan.model_kwargs)
    if not isinstance(made, nn.Module):
        raise FactoryError(f"{plan.model} gave a {type(made).__name__}, not a torch.nn.Module")
    return lightning.plain(made)


def copies(plan: TrainingPlan, made: nn.Module) -> Callable[[], nn.Module]:
    """What gives another model like `made`, which nobody trains."""

    def another() -> nn.Module:
        if not hooked(made):
            try:
                return copy.deepcopy(made)
            except RuntimeError:  # torch refuses tensors that are results, such as those of weight_norm
                pass
        with own_generators(device, SEED):
            fresh = model(plan).to(device)
        if fresh is made:  # the module itself was named, and nothing makes another one
            return copy.deepcopy(made)
        fresh.load_state_dict(made.state_dict())
        return fresh

    device = next((parameter.device for parameter in made.parameters()), torch.device("cpu"))
    return another


def hooked(made: nn.Module) -> list[str]:
    """Parameters with a hook on their gradient, which copy.deepcopy leaves out."""
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return [
        name
        for name, parameter in made.named_parameters()
        if any(getattr(parameter, kind, None) for kind in kinds)
    ]


def optimizer(made: nn.Module, *, sparse: bool) -> Optimizer:
    """AdamW; it takes no sparse gradients, which plain SGD does."""
    if sparse:
        return torch.optim.SGD(made.parameters(), lr=0.1)
    return torch.optim.AdamW(made.parameters(), lr=1e-3)


def loader(plan: TrainingPlan, world: int) -> DataLoader[Any]:
    """The loader of this rank. A dataset gets a DistributedSampler, and so does a loader that Accelerate or
    Lightning would give one; any other loader is taken as it is.
    """
    if plan.data in models.DATA or not plan.data:
        samples = max(models.SAMPLES, world * plan.batch * plan.accumulate * _EPOCH)
        make = models.DATA.get(plan.data or plan.model, models.Walks)
        return distributed(make(samples), plan.batch)
    return _sharded(_users(plan), plan.batch, wrapper(plan))


def _users(plan: TrainingPlan) -> FactoryLoader:
    wanted = DataPlan(factory=plan.data, kwargs=plan.data_kwargs, directory=plan.directory)
    return resolve(wanted, {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ})()


def wrapper(plan: TrainingPlan) -> str:
    """What shares out a plain loader in the user's own loop, by the imports of the files that were named."""
    return next((name for name in _WRAPPERS if name in imported(plan)), "")


def imported(plan: TrainingPlan) -> set[str]:
    """The top-level packages that these files import anywhere; nothing is run for it."""
    packages: set[str] = set()
    for name in {plan.model, plan.data, plan.loss}:
        where, _, attribute = name.rpartition(":")
        if not attribute or not where:
            continue
        module = inspect.getmodule(find(name, plan.directory)) or sys.modules.get(where)
        try:
            tree = ast.parse(inspect.getsource(module)) if module else None
        except (OSError, TypeError, SyntaxError):
            continue
        packages |= _imports(tree) if tree else set()
    return packages


def _imports(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    return names


def _sharded(made: FactoryLoader, batch: int, wrapper: str) -> DataLoader[Any]:
    whole = made.given == "loader" and not wrapper
    own = whole or made.iterable or {"sampler", "batch_sampler"} & made.loader.keys()
    more = {"batch_size": batch, **made.loader} if "batch_sampler" not in made.loader else dict(made.loader)
    if own:
        return DataLoader(made.dataset, **more)
    shuffle = bool(more.pop("shuffle", made.given == "dataset"))
    return distributed(made.dataset, more.pop("batch_size"), shuffle=shuffle, **more)


def step(plan: TrainingPlan) -> Callable[[nn.Module, Batch, dict[str, Any]], Any] | None:
    """The user's own step of the loop; None where none was given."""
    return find(plan.step, plan.directory) if plan.step else None


def checkpoint(plan: TrainingPlan) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """The user's own `save(model, state, path)` and `load(model, state, path)`; None where it was not given."""
    save, load = (find(name, plan.directory) if name else None for name in (plan.save, plan.load))
    return save, load


def loss(plan: TrainingPlan) -> Callable[[nn.Module, Batch], Tensor]:
    """The loss of a model on a batch."""
    if not plan.loss:
        if plan.model in models.MODELS and not plan.data:
            return models.cross_entropy
        return _usual if (own := step(plan)) is None else _usual_or_of(own)
    measure = getattr(functional, plan.loss, None) or find(plan.loss, plan.directory)
    if isinstance(measure, type) or not _parameters(
        measure
    ):  # such as nn.MSELoss, or a function that makes a loss
        measure = measure()
    takes_all = _takes_model(measure)

    def of(net: nn.Module, batch: Batch) -> Tensor:
        return measure(net, batch) if takes_all else measure(*_out_and_wanted(net, batch))  # type: ignore[no-any-return]

    return of


def _takes_model(measure: Any) -> bool:
    """`loss(model, batch)` is told from `loss(output, target)` by the name of its first argument."""
    return _parameters(measure)[:1] == ["model"]


def _parameters(function: Any) -> list[str]:
    return [*inspect.signature(function).parameters]


def _usual(net: nn.Module, batch: Batch) -> Tensor:
    """The model's own loss where its output has one, else cross entropy for whole numbers and mean squares."""
    if isinstance(bare(net), lightning.TrainingStep):
        return net(batch)  # type: ignore[no-any-return]
    if isinstance(batch, Mapping):
        out = net(**batch)
        output = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
        if isinstance(output, Tensor):
            return output
        raise FactoryError("the batch is a dict and the model gives no loss: name one with --loss MODULE:FUNCTION")
    out, wanted = _out_and_wanted(net, batch)
    if not isinstance(out, Tensor) or not isinstance(wanted, Tensor):
        raise FactoryError("model or batch is not of plain tensors: name a loss(model, batch) with --loss")
    if wanted.is_floating_point():
        return functional.mse_loss(out.float(), wanted)
    return functional.cross_entropy(out.float(), wanted)


class _Backward(BaseException):
    """The step came to its backward pass; not an Exception, which the step might catch."""


def _usual_or_of(step: Callable[[nn.Module, Batch, dict[str, Any]], Any]) -> Callable[[nn.Module, Batch], Tensor]:
    """The usual loss, and where model and batch do not fit it, what the given step calls backward() on."""
    unfit = False

    def of(net: nn.Module, batch: Batch) -> Tensor:
        nonlocal unfit
        if not unfit:
            try:
                return _usual(net, batch)
            except Exception:  # whatever the model says to what it was not made for
                unfit = True
        return _first_backward(step, net, batch)

    return of


def _first_backward(
    step: Callable[[nn.Module, Batch, dict[str, Any]], Any], net: nn.Module, batch: Batch
) -> Tensor:
    """The loss of the first backward pass of a step that begins anew; nothing comes of the rest of the step."""
    state: dict[str, Any] = {}
    outputs: list[Tensor] = []
    wrapped = isinstance(getattr(net, "module", None), nn.Module)

    def backward(tensors: Any, *_given: Any, **_named: Any) -> None:
        outputs.extend([tensors] if isinstance(tensors, Tensor) else tensors)
        raise _Backward

    kept = torch.autograd.backward
    torch.autograd.backward = backward
    try:
        with _as_synchronised_as_now(net):
            step(net if wrapped else Alone(net), batch, state)
    except _Backward:
        scales = [scaler.get_scale() for scaler in state.values() if isinstance(scaler, torch.amp.GradScaler)]
        return outputs[0].mean() / (scales[0] if scales else 1.0)
    finally:
        torch.autograd.backward = kept
    raise NoBackward(
        "model and batch fit no usual loss, and the step calls no backward(): name a loss with --loss"
    )


@contextlib.contextmanager
def _as_synchronised_as_now(net: nn.Module) -> Iterator[None]:
    """A step that accumulates keeps its first passes on the rank, by no_sync() or DDP's attribute: not here, where
    its first pass stands for all.
    """
    if not isinstance(net, DistributedDataParallel):
        yield
        return
    kind, now = type(net), net.require_backward_grad_sync
    constant = property(lambda _net: now, lambda _net, _value: None)
    net.__class__ = type(kind.__name__, (kind,), {"require_backward_grad_sync": constant})
    try:
        yield
    finally:
        net.__class__ = kind
        net.require_backward_grad_sync = now


def as_loss(value: Any) -> Tensor:
    """Raises FactoryError where it is none."""
    if not isinstance(value, Tensor):
        raise FactoryError(f"the loss of a batch is {_kind_of(value)}, not a tensor: name a loss(model, batch)")
    return value


def _kind_of(batch: Any) -> str:
    if batch is None:
        return "None"
    name = type(batch).__name__
    return f"a {name} of {len(batch)}" if isinstance(batch, tuple | list) else f"a {name}"


def _out_and_wanted(net: nn.Module, batch: Batch) -> tuple[Any, Any]:
    """The model's output for all but the last part of the batch, and that part."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise FactoryError(
            f"the loader gave {_kind_of(batch)} for a batch, not (input, target): name a loss(model, batch) with "
            "--loss MODULE:FUNCTION"
        )
    return net(*batch[:-1]), batch[-1]
