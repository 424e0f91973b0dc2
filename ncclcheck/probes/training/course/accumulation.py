"""Whether a step that takes several micro-batches divides their gradients by their number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ncclcheck.probes.training.equal.alike import of_all_ranks
from ncclcheck.probes.training.equal.seeds import SEED, own_generators
from ncclcheck.probes.training.equal.state import gradients
from ncclcheck.probes.training.feed import Batch, moved
from ncclcheck.probes.training.loop import TrainingSetting, accumulate, wrap

_MOST = 32  # micro-batches of a step
_CLOSE = 0.01  # of the norm: the same batch again and again gives the same gradients but for rounding

Step = Callable[[nn.Module, Batch, dict[str, Any]], Any]


def look(setting: TrainingSetting, step: Step) -> tuple[int, int]:
    """Calls until all ranks' optimizers step, 0: they do not; and the micro-batches of a step, where one batch
    given again and again makes the gradient as many times larger than that of the given loss on it; else 0: it
    divides, or its loss is another one.
    """
    batch = setting.first[0]
    calls, ours = _until_it_steps(setting, step, batch)
    with own_generators(setting.device, SEED):
        accumulate(setting, model := wrap(setting, setting.fresh_model()), iter([batch]), 1)
    ratio = _times(ours, gradients(model)) if calls > 1 else 0.0
    ranks = of_all_ranks(setting.peers, [calls, ratio])
    added = calls > 1 and all(abs(times - calls) < _CLOSE * calls for _, times in ranks)
    return calls, calls if added else 0


def of_pieces(setting: TrainingSetting, ours: dict[str, Tensor], pieces: int) -> int:
    """The same of a step with a backward pass for each piece of its batch: how many pieces, where gradients are
    as many times those of the given loss on the whole batch; else 0.
    """
    with own_generators(setting.device, SEED):
        accumulate(setting, model := wrap(setting, setting.fresh_model()), iter(setting.first[:1]), 1)
    ranks = of_all_ranks(setting.peers, _times(ours, gradients(model)))
    return pieces if all(abs(times - pieces) < _CLOSE * pieces for times in ranks) else 0


def _until_it_steps(setting: TrainingSetting, step: Step, batch: Batch) -> tuple[int, dict[str, Tensor]]:
    """Calls until an optimizer steps, and the gradients that it was given."""
    model, state = wrap(setting, setting.fresh_model()), dict[str, Any]()
    given: dict[str, Tensor] = {}

    def before(_optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not given:
            given.update(gradients(model))

    handle = register_optimizer_step_pre_hook(before)
    try:
        for calls in range(1, _MOST + 1):
            setting.context.tick()
            with own_generators(setting.device, SEED):
                step(model, moved(batch, setting.device), state)
            if all(of_all_ranks(setting.peers, bool(given))):
                return calls, given
    finally:
        handle.remove()
    return 0, {}


def _times(ours: dict[str, Tensor], of_loss: dict[str, Tensor]) -> float:
    """By which factor ours are those of the loss; 0 where they are no multiple of them."""
    names = ours.keys() & of_loss.keys()
    square = sum(float(of_loss[name].square().sum()) for name in names)
    if not square:
        return 0.0
    ratio = sum(float((ours[name] * of_loss[name]).sum()) for name in names) / square
    off = math.sqrt(sum(float((ours[name] - ratio * of_loss[name]).square().sum()) for name in names) / square)
    return ratio if off < _CLOSE * max(1.0, abs(ratio)) else 0.0
