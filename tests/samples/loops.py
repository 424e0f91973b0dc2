"""Steps as people write them whose numbers end, that keep what they computed, or that train less than is meant."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.samples.recipes import Batch, Net, State, inner, loss_of, rows

__all__ = ["Net", "rows"]
HISTORY: list[Tensor] = []


def _optimizer(model: nn.Module, state: State, lr: float = 0.1) -> torch.optim.Optimizer:
    if "optimizer" not in state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=lr)
    found = state["optimizer"]
    assert isinstance(found, torch.optim.Optimizer)
    return found


def _train(model: nn.Module, state: State, loss: Tensor, lr: float = 0.1) -> None:
    optimizer = _optimizer(model, state, lr)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


# Numbers that end


def decaying(model: nn.Module, batch: Batch, state: State) -> None:
    """An annealed weight reaches 0, and its logarithm is -inf."""
    state["left"] = state.get("left", 5.0) - 1.0
    kept = model(batch[0]).softmax(1) * max(0.0, state["left"])
    _train(model, state, loss_of(model, batch) - 0.01 * torch.log(kept).mean())


def too_fast(model: nn.Module, batch: Batch, state: State) -> None:
    """A learning rate that a squared loss cannot take."""
    _train(model, state, (model(batch[0]) - batch[1][:, None]).square().square().mean(), lr=100.0)


def rooted(model: nn.Module, batch: Batch, state: State) -> None:
    """The distance of outputs to themselves: the derivative of a root at 0."""
    state["step"] = state.get("step", 0) + 1
    out = model(batch[0])
    away = out - out.detach() * (1.0 if state["step"] > 3 else 0.5)
    _train(model, state, F.cross_entropy(out, batch[1]) + 0.1 * away.square().sum(-1).sqrt().mean())


def skips_bad(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: what is not finite is left out, on all ranks alike."""
    state["step"] = state.get("step", 0) + 1
    loss = loss_of(model, batch) / (0.0 if state["step"] == 3 else 1.0)
    optimizer = _optimizer(model, state)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    if state["step"] != 3:
        optimizer.step()


class Auto(nn.Module):
    """Gives what it rebuilds and how it was coded."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.build = nn.Linear(16, 4), nn.Linear(4, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.code(x)
        return self.build(code), code


def alone() -> torch.utils.data.TensorDataset:
    """Batches of one part."""
    return torch.utils.data.TensorDataset(rows().tensors[0])


def rebuilt(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: only this step knows the loss, and it looks into the wrapped model."""
    assert isinstance(model.module, Auto)
    out, code = model(batch[0])
    _train(model, state, F.mse_loss(out, batch[0]) + 1e-3 * code.square().mean())


# What is kept


def kept_losses(model: nn.Module, batch: Batch, state: State) -> None:
    loss = loss_of(model, batch)
    _train(model, state, loss)
    state.setdefault("losses", []).append(loss)


def kept_global(model: nn.Module, batch: Batch, state: State) -> None:
    out = model(batch[0])
    HISTORY.append(out)
    _train(model, state, F.cross_entropy(out, batch[1]))


def summed_up(model: nn.Module, batch: Batch, state: State) -> None:
    loss = loss_of(model, batch)
    _train(model, state, loss)
    state["total"] = state.get("total", 0.0) + loss


def noted(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: numbers, the last losses, and a graph of one step only."""
    loss = loss_of(model, batch)
    _train(model, state, loss)
    state["last"] = loss
    state.setdefault("curve", []).append(loss.item())
    state.setdefault("window", deque(maxlen=4)).append(loss.detach())


# What is trained


def head_forgotten(model: nn.Module, batch: Batch, state: State) -> None:
    if not state:
        state["optimizer"] = torch.optim.SGD(inner(model).net[0].parameters(), lr=0.1)  # type: ignore[index, union-attr]
    _train(model, state, loss_of(model, batch))


def left_in_eval(model: nn.Module, batch: Batch, state: State) -> None:
    _train(model, state, loss_of(model, batch))
    model.eval()
    with torch.no_grad():
        state["score"] = float(loss_of(model, batch))


def evaluated(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: goes back to training."""
    model.train()
    left_in_eval(model, batch, state)


def rate_of_zero(model: nn.Module, batch: Batch, state: State) -> None:
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
        state["scheduler"] = torch.optim.lr_scheduler.LambdaLR(state["optimizer"], lambda step: step // 1000)
    _train(model, state, loss_of(model, batch))
    state["scheduler"].step()


def wiped(model: nn.Module, batch: Batch, state: State) -> None:
    optimizer = _optimizer(model, state)
    loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
    optimizer.zero_grad()
    optimizer.step()


def clipped_first(model: nn.Module, batch: Batch, state: State) -> None:
    optimizer = _optimizer(model, state)
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def undivided(model: nn.Module, batch: Batch, state: State) -> None:
    optimizer = _optimizer(model, state)
    state["step"] = state.get("step", 0) + 1
    loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
    if state["step"] % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()


def thawed(model: nn.Module, batch: Batch, state: State) -> None:
    """A layer that was frozen when DDP was made is trained from the third step on."""
    state["step"] = state.get("step", 0) + 1
    if state["step"] == 3:
        inner(model).net[0].requires_grad_(True)  # type: ignore[index]
    _train(model, state, loss_of(model, batch))


class HalfFrozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.net[0].requires_grad_(False)


def teacher_is_student(model: nn.Module, batch: Batch, state: State) -> None:
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
        state["teacher"] = copy.copy(inner(model))
    _train(model, state, loss_of(model, batch))


def summed_gradients(model: nn.Module, batch: Batch, state: State) -> None:
    """All-reduced once more, on top of DDP."""
    optimizer = _optimizer(model, state)
    optimizer.zero_grad()
    loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
    for one in model.parameters():
        torch.distributed.all_reduce(one.grad)
    optimizer.step()


# Losses


def softmax_twice(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).softmax(1), batch[1])


def pairs(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch[0])[:, :1], batch[1].float())


def column_minus_row(model: nn.Module, batch: Batch) -> Tensor:
    found: Tensor = (model(batch[0])[:, :1] - batch[1].float()).square().mean()
    return found


def scores_as_logs(model: nn.Module, batch: Batch) -> Tensor:
    return F.nll_loss(model(batch[0]), batch[1])


def one_class(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0])[:, :1], torch.zeros_like(batch[1]))


def sigmoid_twice(model: nn.Module, batch: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch[0])[:, 0].sigmoid(), batch[1].gt(1).float())


def against_zero(model: nn.Module, batch: Batch) -> Tensor:
    """Sound: a target for all, and log-probabilities twice, which changes nothing."""
    scores: Any = model(batch[0])
    return F.mse_loss(scores, torch.tensor(0.0)) * 0.0 + F.cross_entropy(scores.log_softmax(1), batch[1])
