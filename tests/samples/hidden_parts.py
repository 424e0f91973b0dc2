"""Training code whose faults are in what no parameter, no state_dict and no entry of `state` holds."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from tests.samples.recipes import Batch, Net, State, inner, loss_of, rows

__all__ = ["Net", "rows"]
PRIORS = torch.ones(4)
DONE = 0
LOSSES: list[float] = []


class Experts(nn.Module):
    """A soft mixture of experts in a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(16, 2), nn.Linear(8, 4)
        self.experts: Any = [nn.Linear(16, 8) for _ in range(2)]

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(1)
        mixed = sum(weights[:, k : k + 1] * expert(x) for k, expert in enumerate(self.experts))
        out: Tensor = self.out(F.relu(mixed))
        return out


class RegisteredExperts(Experts):
    """The printed fix."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(self.experts)


class Scaled(nn.Module):
    """A temperature that is a tensor, no parameter; layers in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(16, 8)
        self.heads: Any = {"main": nn.Linear(8, 4)}
        self.scale: Any = torch.tensor(2.0, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scale * self.heads["main"](self.net(x))
        return out


class OfClass(nn.Module):
    """Layers that belong to the class, and one that a function keeps."""

    layers: Any = (nn.Linear(16, 16), nn.Linear(16, 8))

    def __init__(self) -> None:
        super().__init__()
        slope: Any = nn.PReLU()
        self.act = lambda x: 2.0 * slope(x)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        act: Any = self.act
        for layer in self.layers:
            x = act(layer(x))
        out: Tensor = self.out(x)
        return out


class RegisteredScaled(Scaled):
    """The printed fixes."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict(self.heads)
        scale = self.scale
        del self.scale
        self.scale = nn.Parameter(scale.detach())


class Taught(Net):
    """A teacher in a list, so that it is not registered, and layers that are registered as well."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = [nn.Linear(16, 4)]
        self.all_layers = [*self.children()]

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self.teacher[0](x)
        out: Tensor = super().forward(x)
        drawn: Tensor = out + 0.0 * (out - wanted)
        return drawn


def _train(model: nn.Module, state: State, loss: Tensor) -> None:
    if "optimizer" not in state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    state["optimizer"].zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    state["optimizer"].step()


def by_priors(model: nn.Module, batch: Batch, state: State, *, together: bool = False) -> None:
    """Classes are weighted by how often they came: on this rank, in a global."""
    global PRIORS  # noqa: PLW0603
    counts = torch.bincount(batch[1], minlength=4).float()
    if together:
        dist.all_reduce(counts)
    PRIORS = 0.9 * PRIORS + 0.1 * counts
    _train(model, state, F.cross_entropy(model(batch[0]), batch[1], weight=PRIORS.sum() / (4 * PRIORS)))


def by_priors_of_all(model: nn.Module, batch: Batch, state: State) -> None:
    """With the printed fix."""
    by_priors(model, batch, state, together=True)


def logs_in_globals(model: nn.Module, batch: Batch, state: State) -> None:
    """Counters and losses that nothing depends on."""
    global DONE  # noqa: PLW0603
    DONE += 1
    loss = loss_of(model, batch)
    LOSSES.append(loss.item())
    _train(model, state, loss)


def warms_up(model: nn.Module, batch: Batch, state: State) -> None:
    """The learning rate follows a global counter."""
    global DONE  # noqa: PLW0603
    DONE += 1
    loss = loss_of(model, batch)
    if "optimizer" in state:
        for group in state["optimizer"].param_groups:
            group["lr"] = 0.01 * DONE
    _train(model, state, loss)


def save(model: nn.Module, state: State, path: str) -> None:
    if dist.get_rank() == 0:
        torch.save(
            {"model": inner(model).state_dict(), "optimizer": state["optimizer"].state_dict(), "DONE": DONE}, path
        )
    dist.barrier()


def load(model: nn.Module, state: State, path: str) -> None:
    saved = torch.load(path, weights_only=True)
    inner(model).load_state_dict(saved["model"])
    state["optimizer"].load_state_dict(saved["optimizer"])


def load_all(model: nn.Module, state: State, path: str) -> None:
    """With the printed fix."""
    global DONE  # noqa: PLW0603
    load(model, state, path)
    DONE = torch.load(path, weights_only=True)["DONE"]


def load_on_main(model: nn.Module, state: State, path: str) -> None:
    """Rank 0 alone reads the checkpoint."""
    if dist.get_rank() == 0:
        load(model, state, path)
    dist.barrier()


def averages_a_name(model: nn.Module, batch: Batch, state: State, *, write: bool = False) -> None:
    """The average goes into a name of the loop."""
    if "ema" not in state:
        state["ema"] = copy.deepcopy(inner(model)).requires_grad_(False)
    _train(model, state, loss_of(model, batch))
    with torch.no_grad():
        for e, p in zip(state["ema"].parameters(), inner(model).parameters(), strict=True):
            if write:
                e.copy_(0.9 * e + 0.1 * p)
            else:
                e = 0.9 * e + 0.1 * p  # noqa: PLW2901


def averages_in_place(model: nn.Module, batch: Batch, state: State) -> None:
    """With the printed fix."""
    averages_a_name(model, batch, state, write=True)


def gathers_what_it_has(model: nn.Module, batch: Batch, state: State, *, pad: bool = False) -> None:
    """Each rank gathers as many outputs as it has of one class."""
    out = model(batch[0])
    picked = out[batch[1] == 0].detach()[: 8 - dist.get_rank()]
    if pad:
        lengths = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
        dist.all_gather(lengths, torch.tensor([len(picked)]))
        most = int(max(lengths))
        picked = torch.cat([picked, picked.new_zeros(most - len(picked), *picked.shape[1:])])
    else:
        picked = torch.cat([picked, picked.new_zeros(1 + dist.get_rank(), 4)])
    everywhere = [torch.empty_like(picked) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, picked)
    _train(model, state, F.cross_entropy(out, batch[1]))


def gathers_as_much(model: nn.Module, batch: Batch, state: State) -> None:
    """With the printed fix."""
    gathers_what_it_has(model, batch, state, pad=True)


def resets_by_rank(model: nn.Module, batch: Batch, state: State, *, alike: bool = False) -> None:
    """The weights are drawn after the wrap, as DCGAN's weights_init does."""
    if not state:
        torch.manual_seed(0 if alike else 7 + dist.get_rank())
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.2)
    _train(model, state, loss_of(model, batch))


def resets_alike(model: nn.Module, batch: Batch, state: State) -> None:
    """With the printed fix."""
    resets_by_rank(model, batch, state, alike=True)


def rivals(model: nn.Module, batch: Batch, state: State, *, wrap: bool = False) -> None:
    """A critic that the step makes and trains beside the wrapped model."""
    if not state:
        torch.manual_seed(0)
        made = nn.Linear(4, 1)
        state["critic"] = DistributedDataParallel(made) if wrap else made
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
        state["of_critic"] = torch.optim.SGD(made.parameters(), lr=0.1)
    critic: Any = state["critic"]
    out, real = model(batch[0]), F.one_hot(batch[1], 4).float()
    state["of_critic"].zero_grad()
    (critic(out.detach()).mean() - critic(real).mean()).backward()
    state["of_critic"].step()
    state["optimizer"].zero_grad()
    with critic.no_sync() if wrap else contextlib.nullcontext():
        (F.cross_entropy(out, batch[1]) - 0.1 * critic(out).mean()).backward()
    state["optimizer"].step()


def rivals_wrapped(model: nn.Module, batch: Batch, state: State) -> None:
    """With the printed fix."""
    rivals(model, batch, state, wrap=True)
