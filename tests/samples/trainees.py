"""Models, data and losses as users have them, healthy ones and others: given to the training run by name."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

GIVEN = torch.randn(203, 16, generator=torch.Generator().manual_seed(0))
WANTED = GIVEN[:, :4].argmax(1)


class Net(nn.Module):
    """Two layers, with BatchNorm and dropout where asked for."""

    def __init__(self, norm: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 4)
        self.between = nn.Sequential(nn.BatchNorm1d(64) if norm else nn.Identity(), nn.ReLU(), nn.Dropout(drop))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.between(self.first(x)))
        return out


class WithLoss(nn.Module):
    """As transformers have it: takes names, gives its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        scores = self.net(x)
        return {"loss": functional.cross_entropy(scores, y), "logits": scores}


class NoNumber(Net):
    """Gives NaN on rank 1."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (float("nan") if dist.get_rank() == 1 else 1.0)


class Branching(Net):
    """A layer that rank 0 alone uses."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out + self.extra(x) * 0.0 if dist.get_rank() == 0 else out


class Restless(Net):
    """Another result each time, whatever the seed."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + time.time_ns() % 97 / 97)


class Seeded(Net):
    """Seeds by rank, and so begins with weights of its own."""

    def __init__(self) -> None:
        torch.manual_seed(dist.get_rank())
        super().__init__()


class Counting(Net):
    """Counts its passes in a buffer that no state_dict has."""

    passes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(x)


class Frozen(Net):
    """Rank 1 freezes a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(dist.get_rank() != 1)


class Late(Net):
    """Makes a layer in its first pass."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "extra"):
            self.extra = nn.Linear(4, 4)
        return self.extra(super().forward(x))  # type: ignore[no-any-return]


class Scaled(Net):
    """An attribute, no buffer, that differs by rank."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0 + dist.get_rank()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class Clipping(Net):
    """Clips in hooks of its parameters, before gradients are averaged."""

    def __init__(self) -> None:
        super().__init__()
        for parameter in self.parameters():
            parameter.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))  # type: ignore[no-untyped-call]


class Sparse(nn.Module):
    """An embedding with sparse gradients, which AdamW does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(50, 16, sparse=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.words(x).mean(1))
        return out


def words() -> TensorDataset:
    return TensorDataset(torch.arange(203 * 6).view(203, 6) % 50, WANTED)


def dataset() -> TensorDataset:
    return TensorDataset(GIVEN, WANTED)


def loader() -> DataLoader[Any]:
    """Without a DistributedSampler."""
    return DataLoader(dataset(), batch_size=4, shuffle=True)


def sharing() -> DataLoader[Any]:
    return DataLoader(dataset(), batch_size=4, sampler=DistributedSampler(dataset()))


class Deaf(DistributedSampler[Any]):
    """Does not hear which epoch it is."""

    def set_epoch(self, epoch: int) -> None:
        """Forgotten."""


def deaf() -> DataLoader[Any]:
    return DataLoader(dataset(), batch_size=4, sampler=Deaf(dataset()))


class Named(Dataset[dict[str, Tensor]]):
    """Samples with names."""

    def __len__(self) -> int:
        return len(GIVEN)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": GIVEN[index], "y": WANTED[index]}


def with_workers() -> tuple[Named, dict[str, Any]]:
    return Named(), {"batch_size": 4, "shuffle": True, "num_workers": 2}


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Shared out by rank, rank 1 with less."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for index in range(dist.get_rank(), len(GIVEN) - 160 * dist.get_rank(), dist.get_world_size()):
            yield GIVEN[index], WANTED[index]


def reseeding() -> TensorDataset:
    """The same seed on every rank."""
    torch.manual_seed(5)
    random.seed(3)
    return dataset()


def summed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A sum over samples, not a mean."""
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


State = dict[str, Any]


def _own_step(model: nn.Module, batch: tuple[Tensor, Tensor], state: State, **wrong: Any) -> None:
    """As a loop has it: AdamW, a scheduler, clipping, an average of the weights."""
    if not state:
        state["optimizer"] = torch.optim.AdamW(model.parameters(), lr=1e-2)
        state["scheduler"] = torch.optim.lr_scheduler.StepLR(state["optimizer"], 1, 0.5)
        state["average"] = torch.optim.swa_utils.AveragedModel(getattr(model, "module", model))
        state["loss"] = 0.0
    loss = functional.cross_entropy(model(batch[0]), batch[1]) / wrong.get("divide", 1)
    loss.backward()
    state["loss"] += float(loss)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    state["optimizer"].step()
    state["optimizer"].zero_grad()
    if wrong.get("schedules", True):
        state["scheduler"].step()
    if wrong.get("averages", True):
        state["average"].update_parameters(getattr(model, "module", model))


def stepping(model: nn.Module, batch: tuple[Tensor, Tensor], state: State) -> None:
    _own_step(model, batch, state)


def divided(model: nn.Module, batch: tuple[Tensor, Tensor], state: State) -> None:
    _own_step(model, batch, state, divide=dist.get_world_size())


def scheduled_on_rank_0(model: nn.Module, batch: tuple[Tensor, Tensor], state: State) -> None:
    _own_step(model, batch, state, schedules=dist.get_rank() == 0)


def averaged_on_rank_0(model: nn.Module, batch: tuple[Tensor, Tensor], state: State) -> None:
    _own_step(model, batch, state, averages=dist.get_rank() == 0)


def clipped_early(model: nn.Module, batch: tuple[Tensor, Tensor], state: State) -> None:
    """Each rank clips its own gradients, then they are averaged by hand."""
    inner = getattr(model, "module", model)
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=1e-2)
    functional.cross_entropy(inner(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_value_(inner.parameters(), 1e-3)
    for parameter in inner.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(dist.get_world_size())
    state["optimizer"].step()
    state["optimizer"].zero_grad()
