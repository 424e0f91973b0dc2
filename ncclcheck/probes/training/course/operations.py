"""Each operation of torch in the user's passes: the first result that is not finite, and functions misused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ncclcheck.probes.dataloader.ours import users_line
from ncclcheck.probes.facts.training.course import Misused
from ncclcheck.probes.training.course import bounds
from ncclcheck.probes.training.equal.own.writes import TorchWrites

_MOST_ELEMENTS = 2**22  # of a result that is looked at
_MOST = 8  # misuses, and steps back through views and casts: chosen
_LEAST_ROWS = 4  # whose sums are looked at: fewer are 1 by chance
_ROUNDING = 1e-3  # of probabilities in bfloat16 or float16, which add up to 1 within this: chosen
_MEANT = ("masked_fill", "masked_fill_", "full", "full_like", "fill_", "where", "new_full", "triu", "tril")
_ACCESS = ("__get__", "__set__", "__repr__", "__bool__", "__len__")
_ROOTS = ("sqrt", "rsqrt", "norm", "vector_norm", "std", "pow", "cdist", "pairwise_distance")
_PAIRED = (functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss)
_MINUS = ("sub", "__sub__", "__rsub__", "rsub", "subtract")
# Between an activation and the loss these change no value; DDP puts its own on outputs.
_PASSES = (
    "View",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Permute",
    "ToCopy",
    "Alias",
    "Clone",
    "T",
    "_DDPSink",
)

Given = tuple[Any, ...]
Found = tuple[Literal["broadcast", "probabilities", "not_log", "one_class", "training"], str]


class Operations(TorchFunctionMode):
    """As long as it is entered, sees the operations of this thread. Call `begin` before each step.

    origin: the operation that gave the first NaN of the step from numbers without one, else the first infinity;
    empty where all was finite. root: a root or norm of exactly 0, whose derivative is infinite. writes: where
    weights are changed outside of an optimizer.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self.misused: dict[str, Misused] = {}
        self.writes = TorchWrites(model)
        self._nan = self._inf = self.root = ("", "")

    def begin(self) -> None:
        """A step begins."""
        self._nan = self._inf = self.root = ("", "")
        self.writes.begin()

    @property
    def origin(self) -> tuple[str, str]:
        """Its name and the user's line."""
        return self._nan if self._nan[0] else self._inf

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: Given = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look at what goes in and comes out; what is computed stays as it is."""
        named = kwargs or {}
        bounds.look(func, args, named)
        self.writes.look(func, str(getattr(func, "__name__", "")), args, named)
        result = func(*args, **named)
        if torch.is_grad_enabled():
            self._look(func, args, named, result)
        return result

    def _look(self, func: Callable[..., Any], args: Given, named: dict[str, Any], result: Any) -> None:
        name = str(getattr(func, "__name__", ""))
        if name in _ACCESS:
            return
        if len(self.misused) < _MOST and (problem := misuse(func, name, args, named, self._model.training)):
            line = users_line()
            self.misused.setdefault(
                f"{name} {line}", Misused(function=name, at=line, problem=problem[0], detail=problem[1])
            )
        if not _is_numbers(result) or self._nan[0]:
            return
        if name in _ROOTS and not self.root[0] and result.requires_grad and bool((result == 0).any()):
            self.root = (name, users_line())
        if not finite(result) and name not in _MEANT:
            given = [value for value in (*args, *named.values()) if _is_numbers(value)]
            if bool(torch.isnan(result).any()) and not any(bool(torch.isnan(value).any()) for value in given):
                infinite = self._inf[0] and not all(map(finite, given))  # 0 * -inf: the logarithm comes first
                self._nan = self._inf if infinite else (name, users_line())
            elif not self._inf[0] and all(map(finite, given)):
                self._inf = (name, users_line())


def compiled(model: nn.Module) -> bool:
    """Whether torch.compile takes part, which must not see these looks."""
    return any(type(module).__name__ == "OptimizedModule" for module in model.modules())


def finite(tensor: Tensor) -> bool:
    """Whether all of it is; a sum is cheaper than a mask, and not finite where an entry is not."""
    if not tensor.is_floating_point():
        return True
    values = tensor.detach()
    return math.isfinite(float(values.float().sum())) or bool(torch.isfinite(values).all())


def _is_numbers(thing: Any) -> bool:
    return (
        type(thing) in (Tensor, nn.Parameter)
        and thing.layout is torch.strided
        and thing.is_floating_point()
        and 0 < thing.numel() <= _MOST_ELEMENTS
    )


def misuse(func: Any, name: str, args: Given, named: dict[str, Any], training: bool) -> Found | None:
    """What is wrong with this call, and in numbers; None where nothing is known to be."""
    first, second = _two(args, named)
    if not isinstance(first, Tensor):
        return None
    if func is functional.dropout and not training:
        return ("training", "") if named.get("training", args[2] if len(args) > 2 else True) is True else None
    if not isinstance(second, Tensor):
        return None
    if func in _PAIRED or (name in _MINUS and first.requires_grad != second.requires_grad):
        return _stretched(first, second, whole=func in _PAIRED)
    if func is functional.cross_entropy:
        return _scores(first, second)
    if func is functional.binary_cross_entropy_with_logits and _made_by(first, "Sigmoid"):
        return "probabilities", "they come out of a sigmoid"
    if func is functional.nll_loss and first.dim() > 1 and bool((first.detach() > _ROUNDING).any()):
        return (
            "not_log",
            f"the largest is {float(first.detach().max()):.3g}; a logarithm of a probability is below 0",
        )
    return None


def _two(args: Given, named: dict[str, Any]) -> tuple[Any, Any]:
    given = [*args[:2]]
    given += [named[key] for key in ("input", "target", "other") if key in named]
    return (*given, None, None)[:2]


def _stretched(first: Tensor, second: Tensor, *, whole: bool) -> Found | None:
    """Operands of which both are stretched: a column against a row of as many. A table of pairs is seldom meant,
    and never of a loss between an output and its target.
    """
    if first.shape == second.shape or min(first.numel(), second.numel()) < 2:
        return None
    column = {first.dim(), second.dim()} == {1, 2} and first.numel() == second.numel()
    try:
        shape = torch.broadcast_shapes(first.shape, second.shape)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None
    grown = math.prod(shape) > max(first.numel(), second.numel())
    if not grown or not (column or whole):
        return None
    return "broadcast", f"{_said(first)} against {_said(second)} gives {'x'.join(map(str, shape))}"


def _said(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"


def _scores(given: Tensor, target: Tensor) -> Found | None:
    if not given.is_floating_point() or given.dim() < 2:
        return None
    if given.shape[1] == 1 and not target.is_floating_point():
        return "one_class", f"scores of {_said(given)}"
    tensor = given.detach().float()
    sums = tensor.sum(1)
    rows = sums.numel() >= _LEAST_ROWS and bool((tensor >= 0).all()) and bool(((sums - 1).abs() < _ROUNDING).all())
    if rows or _made_by(given, "Softmax"):
        return "probabilities", "they come out of a softmax: each row adds up to 1"
    return None


def _made_by(tensor: Tensor, activation: str) -> bool:
    """Whether it is what this activation gave, in another shape or type at most."""
    node: Any = tensor.grad_fn
    for _ in range(_MOST):
        if node is None:
            return False
        name = node.name().removesuffix("0").removesuffix("1").removesuffix("Backward")
        if name == activation:
            return True
        if not name.startswith(_PASSES) or len(node.next_functions) != 1:
            return False
        node = node.next_functions[0][0]
    return False
