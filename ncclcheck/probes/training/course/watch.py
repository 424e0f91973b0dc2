"""A run of steps, watched from outside: their losses, the first number that is not finite, and what grows.

watch = Watch(model, roots)
with watch.step(batch):
    ...  # the user's own step, or the tool's
course = watch.course(setting, own=True)
"""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ncclcheck.probes.dataloader.ours import is_users
from ncclcheck.probes.facts.training.course import Course, NotFiniteAt
from ncclcheck.probes.training.course.growth import GrowthWatch
from ncclcheck.probes.training.course.operations import Operations, compiled, finite
from ncclcheck.probes.training.equal.alike import of_all_ranks
from ncclcheck.probes.training.equal.state import plain
from ncclcheck.probes.training.feed import Batch
from ncclcheck.probes.training.loop import TrainingSetting, bare

_MOST = 5  # warnings, ranks, misuses in a finding: chosen
_LONGEST = 300  # characters of a warning: chosen, its first sentences
# Of torch's warnings those that say that training is wrong, not slow or old-fashioned.
_TELLING = re.compile(
    r"lr_scheduler\.step\(\)` before|None of the inputs have requires_grad"
    r"|Implicit dimension choice|discards the imaginary part|were resized|non-finite|invalid value encountered"
    r"|divide by zero"
)


class StepWatch:
    """Watches this rank. model: as it is trained; roots: by name, what may keep things."""

    def __init__(self, model: nn.Module, roots: Mapping[str, Any]) -> None:
        self._model = model
        self._operations = Operations(bare(model))
        self.writes = self._operations.writes
        self._growth = GrowthWatch({"model": bare(model), **roots})
        self._losses: list[float] = []
        self._of_step: list[Tensor] = []
        self._gradient = ""
        self._lapse: tuple[int, str, str, str, float | None] | None = None
        self._warned: dict[str, None] = {}
        self._compiled = compiled(model)
        self.steps = 0

    @contextlib.contextmanager
    def step(self, batch: Batch) -> Iterator[None]:
        """One step, on this batch."""
        self.steps += 1
        self._of_step, self._gradient = [], ""
        self._operations.begin()
        entered = contextlib.nullcontext() if self._compiled else self._operations
        with self._warnings(), self._backward(), self._optimizer(), entered:
            yield
        self._growth.look()
        self._judge(batch)

    @property
    def passes(self) -> int:
        """Backward passes of the last step."""
        return len(self._of_step)

    @contextlib.contextmanager
    def _warnings(self) -> Iterator[None]:
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            yield
        for message in messages:
            text = " ".join(str(message.message).split())
            if len(self._warned) < _MOST and _TELLING.search(text):
                place = (
                    f"{message.filename.rpartition('/')[2]}:{message.lineno}: "
                    if is_users(message.filename)
                    else ""
                )
                self._warned.setdefault(f"{place}{text}"[:_LONGEST])

    @contextlib.contextmanager
    def _backward(self) -> Iterator[None]:
        """Every loss goes through torch.autograd.backward, whoever calls it."""
        kept: Callable[..., Any] = torch.autograd.backward

        def backward(tensors: Any, *given: Any, **named: Any) -> Any:
            roots: Sequence[Any] = (tensors,) if isinstance(tensors, Tensor) else tensors
            self._of_step += [root.detach() for root in roots if isinstance(root, Tensor)]
            return kept(tensors, *given, **named)

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = kept

    @contextlib.contextmanager
    def _optimizer(self) -> Iterator[None]:
        def before(_optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
            self.writes.optimizing = True
            if not self._gradient:
                bad = [
                    n
                    for n, parameter in self._model.named_parameters()
                    if parameter.grad is not None and not _ok(parameter.grad)
                ]
                self._gradient = ", ".join(map(plain, bad[:3])) + (
                    f" and {len(bad) - 3} more" if len(bad) > 3 else ""
                )

        def after(_optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
            self.writes.optimizing = False

        handles = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
        try:
            yield
        finally:
            self.writes.optimizing = False
            for handle in handles:
                handle.remove()

    def _judge(self, batch: Batch) -> None:
        """After a step: what of it was not finite first."""
        losses = [float(tensor.float().mean()) for tensor in self._of_step if tensor.numel()]
        before = self._losses[-1] if self._losses else None
        self._losses += losses[-1:]
        if self._lapse is not None:
            return
        bad = [loss for loss in losses if not math.isfinite(loss)]
        what = name = at = ""
        if bad:
            what, name, at = "loss", "NaN" if math.isnan(bad[0]) else "infinite", ""
            if part := not_finite_part(batch):
                what, name = "batch", part
            elif self._operations.origin[0]:
                what, (name, at) = "operation", self._operations.origin
        elif self._gradient:
            what, name, at = (
                "gradient",
                self._gradient,
                " ".join(module for module in self._operations.root if module),
            )
        elif weights := self._bad_weights():
            what, name = "weight", weights
        if what:
            self._lapse = (self.steps, what, name, at, before)

    def _bad_weights(self) -> str:
        return next((plain(name) for name, parameter in self._model.named_parameters() if not _ok(parameter)), "")

    def course(self, setting: TrainingSetting, *, own: bool) -> Course:
        """What all ranks saw; all must ask."""
        mine = [self._lapse, bool(self._bad_weights()), self._losses[:1], self._losses[-1:]]
        ranks = of_all_ranks(setting.peers, [_plain(value) for value in mine])
        lapses = [(row[0], rank) for rank, row in enumerate(ranks) if row[0] is not None]
        lapse = None
        if lapses:
            step = min(failure[0] for failure, _ in lapses)
            # A rank whose own numbers ended is the cause; weights and gradients are averaged over all.
            of_step = sorted((_ORDER[failure[1]], rank, failure) for failure, rank in lapses if failure[0] == step)
            kind, _, (_, what, name, at, before) = of_step[0]
            lapse = NotFiniteAt(
                step=step,
                ranks=[rank for order, rank, _ in of_step if order == kind][:_MOST],
                what=what,
                name=name[:200],
                at=at[:200],
                before=before,
                lasting=any(rank[1] for rank in ranks),
            )
        growing = self._growth.growing()
        return Course(
            own=own,
            steps=self.steps,
            first=next((loss for loss in ranks[0][2] if loss is not None), None),
            last=next((loss for loss in ranks[0][3] if loss is not None), None),
            not_finite=lapse,
            growing=growing,
            misused=[*self._operations.misused.values()][:_MOST],
            warned=[*self._warned],
        )


_ORDER = {"batch": 0, "operation": 1, "loss": 2, "gradient": 3, "weight": 4}


def _plain(value: Any) -> Any:
    """As JSON has it: a number that is not finite is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _ok(tensor: Tensor) -> bool:
    values = tensor.detach()
    return finite(values.coalesce().values() if values.is_sparse else values)


def not_finite_part(batch: Batch, name: str = "") -> str:
    """The part of a batch that is not finite, `x` or `[0]`; empty where all is."""
    if isinstance(batch, Tensor):
        return (name or "the batch") if batch.layout is torch.strided and not finite(batch) else ""
    parts: Any = ()
    if isinstance(batch, Mapping):
        parts = ((f"{name}[{key!r}]", part) for key, part in batch.items())
    elif isinstance(batch, list | tuple):
        parts = ((f"{name}[{number}]", part) for number, part in enumerate(batch))
    return next((place for where, part in parts if (place := not_finite_part(part, where))), "")
