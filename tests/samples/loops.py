"""Steps as people write them whose numbers end, that keep what they computed, or that train less than is meant."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F

from tests.samples.recipes import Batch, Net, State, inner, loss_of, rows

__all__ = ["Net", "rows"]
HISTORY: list[Tensor] = []


def _optimizer(model: nn.Module, state: State, lr: float = 0.1) -> torch.optim.Optimizer:
    if "optimizer" not in state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=lr)
    optimizer = state["optimizer"]
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


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


def entropy(model: nn.Module, batch: Batch, state: State) -> None:
    """A probability that rounds to 0: 0 * log(0) is NaN."""
    state["step"] = state.get("step", 0) + 1
    kept = (model(batch[0]) * 100.0 * state["step"] ** 2).softmax(1)
    _train(model, state, loss_of(model, batch) + 0.01 * (kept * torch.log(kept)).sum(1).mean())


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


def _of_rank_1(state: State, loss: Tensor) -> Tensor:
    """NaN on rank 1 in its third step."""
    state["step"] = state.get("step", 0) + 1
    gone = state["step"] == 3 and dist.is_initialized() and dist.get_rank() == 1
    return loss * float("nan") if gone else loss


def skips_nan_alone(model: nn.Module, batch: Batch, state: State) -> None:
    loss = _of_rank_1(state, loss_of(model, batch))
    if not torch.isnan(loss):
        _train(model, state, loss)


def skips_nan_together(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: all ranks leave it out."""
    loss = _of_rank_1(state, loss_of(model, batch))
    skip = torch.isnan(loss).float()
    dist.all_reduce(skip, op=dist.ReduceOp.MAX)
    if not skip:
        _train(model, state, loss)


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


def kept_outputs(model: nn.Module, batch: Batch, state: State) -> None:
    """Records, as Lightning modules keep them for the end of an epoch."""
    out = model(batch[0])
    loss = F.cross_entropy(out, batch[1])
    _train(model, state, loss)
    state.setdefault("outputs", []).append({"loss": loss, "kept": [out]})


def hooked_again(model: nn.Module, batch: Batch, state: State, *, remove: bool = False) -> None:
    """A hook for the log, registered in each step."""
    layer = inner(model).get_submodule("net.0")
    handle = layer.register_forward_hook(lambda _layer, _given, out: state.update(mean=float(out.detach().mean())))
    _train(model, state, loss_of(model, batch))
    if remove:
        handle.remove()


def hooked_and_removed(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: removes it."""
    hooked_again(model, batch, state, remove=True)


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


def head_replaced(model: nn.Module, batch: Batch, state: State) -> None:
    """After DDP and the optimizer were made: neither knows the new one."""
    if not state:
        _optimizer(model, state)
        net: Any = inner(model).net
        net[3] = nn.Linear(32, 4)
    _train(model, state, loss_of(model, batch))


def head_reset(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: the same parameters, begun anew on all ranks alike."""
    if not state:
        _optimizer(model, state)
        torch.manual_seed(7)
        inner(model).net[3].reset_parameters()  # type: ignore[index, union-attr]
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


def undivided_pieces(model: nn.Module, batch: Batch, state: State, *, by: int = 1) -> None:
    """Takes apart each batch."""
    optimizer = _optimizer(model, state)
    optimizer.zero_grad()
    ddp: Any = model
    pieces = [*zip(batch[0].chunk(4), batch[1].chunk(4), strict=True)]
    for number, piece in enumerate(pieces, 1):
        with contextlib.nullcontext() if number == len(pieces) else ddp.no_sync():
            (loss_of(model, piece) / by).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def divided_pieces(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: divides by their number."""
    undivided_pieces(model, batch, state, by=4)


def accumulates(model: nn.Module, batch: Batch, state: State, *, synced: int = 0) -> None:
    """Sound: gradients cross ranks in the call whose optimizer steps."""
    optimizer = _optimizer(model, state)
    state["step"] = state.get("step", 0) + 1
    ddp: Any = model
    with contextlib.nullcontext() if state["step"] % 4 == synced else ddp.no_sync():
        (loss_of(model, batch) / 4).backward()  # type: ignore[no-untyped-call]
    if state["step"] % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()


def synced_too_early(model: nn.Module, batch: Batch, state: State) -> None:
    accumulates(model, batch, state, synced=3)


def averages_weights_only(model: nn.Module, batch: Batch, state: State) -> None:
    """By hand, and without the biases."""
    optimizer = _optimizer(model, state)
    optimizer.zero_grad()
    loss_of(inner(model), batch).backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        if parameter.dim() > 1 and parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    optimizer.step()


def decays_on_main(model: nn.Module, batch: Batch, state: State) -> None:
    """Rank 0 adds to gradients that are averaged already."""
    optimizer = _optimizer(model, state)
    optimizer.zero_grad()
    loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters() if dist.get_rank() == 0 else ():
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach(), alpha=0.01)
    optimizer.step()


def skips_in_turn(model: nn.Module, batch: Batch, state: State) -> None:
    """Each rank takes as many steps as the others, but not in the same calls."""
    optimizer = _optimizer(model, state)
    state["step"] = state.get("step", 0) + 1
    optimizer.zero_grad()
    loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
    if state["step"] == 1 or state["step"] % 2 == dist.get_rank():
        optimizer.step()


def second_order(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: LBFGS keeps the loss of each rank's batch."""
    if "optimizer" not in state:
        state["optimizer"] = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)

    def closure() -> float:
        state["optimizer"].zero_grad()
        loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss)

    state["optimizer"].step(closure)


def sharded_optimizer(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: its state_dict() raises until somebody consolidates it."""
    if "optimizer" not in state:
        state["optimizer"] = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    _train(model, state, loss_of(model, batch))


def made_anew(model: nn.Module, batch: Batch, state: State) -> None:
    """An optimizer for each step, without a memory of the last."""
    optimizer = state["newest"] = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer.zero_grad()
    loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def mean_over_ranks(value: Tensor) -> Tensor:
    total = value.detach().clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def logs_on_main(model: nn.Module, batch: Batch, state: State) -> None:
    """Every third step rank 0 alone enters an all_reduce."""
    state["step"] = state.get("step", 0) + 1
    loss = loss_of(model, batch)
    _train(model, state, loss)
    if dist.get_rank() == 0 and state["step"] % 3 == 0:
        state["logged"] = float(mean_over_ranks(loss))


def logs_alike(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: all ranks do."""
    state["step"] = state.get("step", 0) + 1
    loss = loss_of(model, batch)
    _train(model, state, loss)
    mean = mean_over_ranks(loss) if state["step"] % 3 == 0 else None
    if dist.get_rank() == 0 and mean is not None:
        state["logged"] = float(mean)


def by_own_plateau(model: nn.Module, batch: Batch, state: State, *, mean: bool = False) -> None:
    """Each rank's own loss decides when its learning rate falls."""
    if "plateau" not in state:
        state["plateau"] = torch.optim.lr_scheduler.ReduceLROnPlateau(_optimizer(model, state), patience=1)
    loss = loss_of(model, batch)
    _train(model, state, loss)
    state["plateau"].step(float(mean_over_ranks(loss) if mean else loss))


def by_plateau(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: the mean over ranks does."""
    by_own_plateau(model, batch, state, mean=True)


class Phases(nn.Module):
    """Two nets in one module, which passes train in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.judge = nn.Linear(4, 16), nn.Linear(16, 1)

    def forward(self, real: Tensor, noise: Tensor, *, judging: bool) -> Tensor:
        made = self.maker(noise)
        if judging:
            return F.softplus(-self.judge(real)).mean() + F.softplus(self.judge(made.detach())).mean()
        return F.softplus(-self.judge(made)).mean()


def in_phases(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound with find_unused_parameters, which each pass needs."""
    own: Any = inner(model)
    state.setdefault("of_judge", torch.optim.SGD(own.judge.parameters(), lr=0.1))
    state.setdefault("of_maker", torch.optim.SGD(own.maker.parameters(), lr=0.1))
    for judging, name in ((True, "of_judge"), (False, "of_maker")):
        state[name].zero_grad()
        noise = batch[0][:, :4]
        model(batch[0], noise, judging=judging).backward()
        state[name].step()


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
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
    optimizer.step()


# Losses


def softmax_twice(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).softmax(1), batch[1])


def pairs(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch[0])[:, :1], batch[1].float())


def column_minus_row(model: nn.Module, batch: Batch) -> Tensor:
    tensor: Tensor = (model(batch[0])[:, :1] - batch[1].float()).square().mean()
    return tensor


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


# Random numbers, averages and schedules


def noised(model: nn.Module, batch: Batch, state: State, seed: int) -> None:
    """Noise from a generator that is made anew in each step."""
    own = torch.Generator().manual_seed(seed)
    out = model(batch[0] + 0.5 * torch.randn(batch[0].shape, generator=own))
    _train(model, state, F.cross_entropy(out, batch[1]))


def noise_by_rank(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: another seed in each step and on each rank."""
    state["step"] = state.get("step", 0) + 1
    noised(model, batch, state, state["step"] * dist.get_world_size() + dist.get_rank())


def seeds_again(model: nn.Module, batch: Batch, state: State) -> None:
    """The same noise in each step."""
    torch.manual_seed(42)
    _train(model, state, F.cross_entropy(model(batch[0] + 0.5 * torch.randn_like(batch[0])), batch[1]))


def seeds_in_a_fork(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: the seed of a picture for the log, and generators as they were after it."""
    _train(model, state, loss_of(model, batch))
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        inner(model)(torch.randn_like(batch[0]))


class Shadow:
    """An average as many write it. copies: or the model's own tensors, which state_dict() gives."""

    def __init__(self, model: nn.Module, *, copies: bool) -> None:
        self.shadow = {name: value.clone() if copies else value for name, value in model.state_dict().items()}

    def update(self, model: nn.Module) -> None:
        for name, value in model.state_dict().items():
            self.shadow[name].copy_(0.9 * self.shadow[name] + 0.1 * value)


def shadowed(model: nn.Module, batch: Batch, state: State, *, copies: bool = True) -> None:
    """Sound: an average of copies."""
    if "ema" not in state:
        state["ema"] = Shadow(inner(model), copies=copies)
    _train(model, state, loss_of(model, batch))
    state["ema"].update(inner(model))


def shadow_is_model(model: nn.Module, batch: Batch, state: State) -> None:
    """An average of the model's own tensors."""
    shadowed(model, batch, state, copies=False)


def by_whole_numbers(step: int) -> float:
    """0 in the warm-up and after it: only step 4 trains."""
    return step // 4 if step < 5 else (100 - step) // 96


def from_zero(step: int) -> float:
    """Sound: a warm-up that begins at 0."""
    return min(1.0, step / 4)


def scheduled(model: nn.Module, batch: Batch, state: State, schedule: Any = from_zero) -> None:
    """Sound."""
    if "schedule" not in state:
        state["schedule"] = torch.optim.lr_scheduler.LambdaLR(_optimizer(model, state), schedule)
    _train(model, state, loss_of(model, batch))
    state["schedule"].step()


def floored(model: nn.Module, batch: Batch, state: State) -> None:
    """A schedule that divides whole numbers."""
    scheduled(model, batch, state, by_whole_numbers)


def evaluates_once(model: nn.Module, batch: Batch, state: State, *, back: bool = False) -> None:
    """An evaluation from which nobody comes back."""
    state["step"] = state.get("step", 0) + 1
    _train(model, state, loss_of(model, batch))
    if state["step"] == 5:
        model.eval()
    if back:
        model.train()


def comes_back(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound."""
    evaluates_once(model, batch, state, back=True)


def annealed(model: nn.Module, batch: Batch, state: State, steps: int = 500) -> None:
    """Sound: a cosine over all batches of the training."""
    if "cosine" not in state:
        state["cosine"] = torch.optim.lr_scheduler.CosineAnnealingLR(_optimizer(model, state), T_max=steps)
    _train(model, state, loss_of(model, batch))
    state["cosine"].step()


def annealed_by_epochs(model: nn.Module, batch: Batch, state: State) -> None:
    """T_max is the number of epochs, and the schedule is stepped with each batch."""
    annealed(model, batch, state, steps=3)


def annealed_within_an_epoch(model: nn.Module, batch: Batch, state: State) -> None:
    """As before, but it is not over when the steps that are tried are."""
    annealed(model, batch, state, steps=10)


class LayerDrop(Net):
    """Each rank leaves layers out by its own dice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if not self.training or torch.rand(()) > 0.5:
                x = x + layer(x)
        out: Tensor = self.net(x)
        return out


class Branch(Net):
    """Another layer for batches of one kind."""

    def __init__(self) -> None:
        super().__init__()
        self.rare = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.rare(x) if x[0, 0] > 0 else self.net(x)
        return out


def two_heads(model: nn.Module, batch: Batch, state: State) -> None:
    """A part that is trained, and that DDP does not know."""
    if "centers" not in state:
        torch.manual_seed(dist.get_rank())  # as where nobody sets a seed
        state["centers"] = nn.Embedding(4, 4)
        state["of_centers"] = torch.optim.SGD(state["centers"].parameters(), lr=0.5)
    out = model(batch[0])
    state["of_centers"].zero_grad()
    _train(model, state, F.cross_entropy(out, batch[1]) + (out - state["centers"](batch[1])).square().mean())
    state["of_centers"].step()


def _piece(tensor: Any) -> Tensor:
    piece: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return piece


def clips_pieces(model: nn.Module, batch: Batch, state: State) -> None:
    """Clipping by the norm of what this rank holds."""
    optimizer = _optimizer(model, state)
    optimizer.zero_grad()
    loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
    pieces = [_piece(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.stack([tensor.square().sum() for tensor in pieces]).sum().sqrt()
    for piece in pieces:
        piece.mul_(0.01 / norm)
    optimizer.step()


def clips_whole(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: torch's own clipping knows pieces."""
    optimizer = _optimizer(model, state)
    optimizer.zero_grad()
    loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()


class Tied(nn.Module):
    """Reads and writes with one table; by_data: that two parameters share."""

    def __init__(self, *, by_data: bool = False) -> None:
        super().__init__()
        self.read, self.write = nn.Embedding(32, 8), nn.Linear(8, 32, bias=False)
        if by_data:
            self.write.weight.data = self.read.weight.data
        else:
            self.write.weight = self.read.weight

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.write(self.read(ids))
        return out


def masked() -> torch.utils.data.TensorDataset:
    """Rows of tokens of which the first ones, other numbers of them in each row, carry no loss."""
    ids = (torch.arange(64)[:, None] * 3 + torch.arange(12)) % 32
    wanted = (ids + 1) % 32
    wanted[torch.arange(12)[None] < (torch.arange(64)[:, None] * 5 % 7)] = -100
    return torch.utils.data.TensorDataset(ids, wanted)


def of_tokens(output: Tensor, target: Tensor) -> Tensor:
    """Sound: the mean over the tokens of a rank."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def makes_loss() -> Any:
    """Sound: a function that makes the loss."""
    return nn.CrossEntropyLoss()


# Weights that are changed outside of an optimizer


def looks_at_average(model: nn.Module, batch: Batch, state: State) -> None:
    """Rank 0 alone loads the average for a look, and trains on with it."""
    _train(model, state, loss_of(model, batch))
    average = state.setdefault("average", copy.deepcopy(inner(model)))
    with torch.no_grad():
        for mean, own in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(own, 0.1)
    state["step"] = state.get("step", 0) + 1
    if state["step"] == 4 and dist.get_rank() == 0:
        inner(model).load_state_dict(average.state_dict())


def looks_at_copy(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: what rank 0 looks at is a copy."""
    _train(model, state, loss_of(model, batch))
    if dist.get_rank() == 0:
        other = copy.deepcopy(inner(model))
        other.load_state_dict(inner(model).state_dict())


def back_to_best(model: nn.Module, batch: Batch, state: State) -> None:
    """Each rank goes back to its best weights when its own loss rises."""
    loss = loss_of(model, batch)
    own = float(F.cross_entropy(inner(model)(batch[0]), (batch[1] + dist.get_rank()) % 4).detach())
    _train(model, state, loss)
    if own < state.get("best", float("inf")):
        state["best"], state["kept"] = own, copy.deepcopy(inner(model).state_dict())
    else:
        inner(model).load_state_dict(state["kept"])


def scaled_by_batch(model: nn.Module, batch: Batch, state: State) -> None:
    """All ranks scale weights, each by what its own batch is."""
    _train(model, state, loss_of(model, batch))
    for parameter in model.parameters():
        parameter.data *= 1.0 - 1e-3 * float(batch[0].abs().mean())


def clamped(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: the same on all ranks."""
    _train(model, state, loss_of(model, batch))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.2, 0.2)
