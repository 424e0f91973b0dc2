"""Training code as people write it, in plain torch: recipes that are sound, and recipes with one fault each."""

from __future__ import annotations

import contextlib
import copy
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, random_split

State = dict[str, Any]
Batch = Any
_DRAWN = torch.Generator().manual_seed(0)
ROWS = torch.randn(256, 16, generator=_DRAWN)
LABELS = ROWS[:, :4].argmax(1)
TOKENS = torch.randint(1, 32, (256, 12), generator=_DRAWN)
IMAGES = torch.randn(128, 3, 16, 16, generator=_DRAWN)


# Data


def rows() -> TensorDataset:
    return TensorDataset(ROWS, LABELS)


def images() -> TensorDataset:
    return TensorDataset(IMAGES, IMAGES.mean((1, 2, 3)).gt(0).long())


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Flips and noise, from the generators that workers seed."""

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = IMAGES[index]
        if random.random() < 0.5:
            image = image.flip(-1)
        return image + 0.1 * torch.randn(()), torch.tensor(index % 2)


def augmented() -> tuple[Augmented, dict[str, Any]]:
    return Augmented(), {"batch_size": 8, "shuffle": True, "num_workers": 1}


class Tokenized(Dataset[dict[str, Any]]):
    """As `datasets` gives it after `set_format("torch")`, with a text beside."""

    def __len__(self) -> int:
        return len(TOKENS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": TOKENS[index], "labels": TOKENS[index], "text": f"sample {index}"}


def collate(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    return {name: torch.stack([sample[name] for sample in samples]) for name in ("input_ids", "labels")}


def tokenized() -> tuple[Tokenized, dict[str, Any]]:
    return Tokenized(), {"batch_size": 4, "shuffle": True, "collate_fn": collate}


class Sentences(Dataset[tuple[Tensor, int]]):
    """Of different lengths."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return TOKENS[index, : 3 + index % 9], index % 4


def padded(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.tensor([len(tensor) for tensor, _ in samples])
    words = pad_sequence([tensor for tensor, _ in samples], batch_first=True)
    return words, lengths, torch.tensor([label for _, label in samples])


def sentences() -> tuple[Sentences, dict[str, Any]]:
    return Sentences(), {"batch_size": 4, "shuffle": True, "collate_fn": padded}


class Shards(IterableDataset[tuple[Tensor, Tensor]]):
    """Each rank reads its own share, all equally much."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for index in range(dist.get_rank(), 256, dist.get_world_size()):
            yield ROWS[index], LABELS[index]


def own_part() -> DataLoader[Any]:
    """Shared out by hand, by a Subset of each rank."""
    mine = [*range(dist.get_rank(), 256, dist.get_world_size())]
    return DataLoader(Subset(rows(), mine), batch_size=4, shuffle=True)


def split_by_each_rank() -> Any:
    """The split for training is drawn without a common seed."""
    train, _ = random_split(rows(), [0.8, 0.2])
    return train


def permuted_by_each_rank() -> TensorDataset:
    chosen = torch.randperm(256, generator=torch.Generator().manual_seed(dist.get_rank()))[:128]
    return TensorDataset(ROWS[chosen], LABELS[chosen])


# Models


class Net(nn.Module):
    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(drop), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(out)))


class ResNet(nn.Module):
    """As torchvision has it, BatchNorm and all."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1, self.layer1, self.fc = nn.BatchNorm2d(width), Residual(width), nn.Linear(width, 2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.layer1(F.relu(self.bn1(self.conv1(x)))).mean((2, 3)))
        return out


class FineTuned(ResNet):
    """The backbone is frozen, the head is not."""

    def __init__(self) -> None:
        super().__init__()
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.startswith("fc."))


class GPT(nn.Module):
    """A language model with tied embeddings and checkpointed blocks, which gives its own loss."""

    def __init__(self, checkpointing: bool = True, drop: float = 0.0) -> None:
        super().__init__()
        self.wte = nn.Embedding(32, 24)
        self.h = nn.ModuleList(
            nn.TransformerEncoderLayer(24, 2, 48, dropout=drop, batch_first=True) for _ in range(2)
        )
        self.lm_head = nn.Linear(24, 32, bias=False)
        self.lm_head.weight = self.wte.weight
        self.checkpointing = checkpointing

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.wte(input_ids)
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        logits = self.lm_head(x)
        return {"loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), "logits": logits}


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(32, 16), nn.LSTM(16, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.words(words), lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.lstm(packed)
        out: Tensor = self.head(hidden[-1])
        return out


class MoE(nn.Module):
    """Routes each sample to one of several experts; some get none."""

    def __init__(self, experts: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(16, experts)
        self.experts = nn.ModuleList(nn.Linear(16, 4) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        best, chosen = weights.max(-1)
        out = torch.zeros(len(x), 4)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            if mine.any():
                out[mine] = best[mine, None] * expert(x[mine])
        return out


class Lit(nn.Module):
    """As a LightningModule is written; the class itself is not needed here."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out

    def training_step(self, batch: Batch, _batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Spectral(nn.Module):
    """Of a GAN's discriminator: power iteration keeps a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class Quantized(nn.Module):
    """A codebook that follows its batches, in buffers, averaged over ranks after each update."""

    codebook: Tensor
    total: Tensor
    count: Tensor

    def __init__(self, codes: int = 24, size: int = 8) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(16, size), nn.Linear(size, 4)
        self.keep(torch.randn(codes, size, generator=torch.Generator().manual_seed(0)))

    def keep(self, codebook: Tensor) -> None:
        self.register_buffer("codebook", codebook)
        self.register_buffer("total", codebook.clone())
        self.register_buffer("count", torch.ones(len(codebook)))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.encode(inputs)
        nearest = torch.cdist(hidden.detach(), self.codebook).argmin(-1)
        chosen = self.codebook[nearest]
        if self.training:
            hot = F.one_hot(nearest, len(self.codebook)).float()
            self.count = 0.9 * self.count + 0.1 * hot.sum(0)
            self.total = 0.9 * self.total + 0.1 * hot.t() @ hidden.detach()
            self.updated()
            self.codebook = self.total / self.count.clamp(min=1e-3)[:, None]
        return self.decode(hidden + (chosen - hidden).detach())  # type: ignore[no-any-return]

    def updated(self) -> None:
        for value in (self.count, self.total):
            if dist.is_initialized():
                dist.all_reduce(value)
                value.div_(dist.get_world_size())


def compiled() -> nn.Module:
    model = torch.compile(Net(), backend="eager")
    assert isinstance(model, nn.Module)
    return model


class GAN(nn.Module):
    """Generator and discriminator in one module; `part` says which of them is called."""

    def __init__(self) -> None:
        super().__init__()
        self.g, self.d = nn.Linear(4, 16), nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor, part: str = "both") -> Tensor:
        if part == "d":
            out: Tensor = self.d(x)
        elif part == "g":
            out = self.g(x)
        else:
            out = self.d(x) + self.d(self.g(x[:, :4]))
        return out


def gan_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.softplus(model(batch[0])).mean()


class Clip(nn.Module):
    """Two towers and a contrastive loss over the batches of all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(16, 8), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return F.normalize(self.image(x), dim=-1), F.normalize(self.text(x), dim=-1), self.scale.exp()


def contrastive(model: nn.Module, batch: Batch) -> Tensor:
    image, text, scale = model(batch[0])
    images, texts = (torch.cat(all_gather(part)) for part in (image, text))  # type: ignore[no-untyped-call]
    logits = scale * images @ texts.T
    wanted = torch.arange(len(logits))
    return (F.cross_entropy(logits, wanted) + F.cross_entropy(logits.T, wanted)) / 2


class UnusedHead(Net):
    def __init__(self) -> None:
        super().__init__()
        self.auxiliary = nn.Linear(16, 2)


class OnlyMain(Net):
    """Rank 0 alone logs, by a collective."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if dist.get_rank() == 0:
            dist.all_reduce(out.detach().mean())
        return out


class WhenLarge(Net):
    """A collective that depends on the batch."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if x.sum() > 0:
            dist.all_reduce(out.detach().mean())
        return out


class Warming(Net):
    """Counts its steps in an attribute, and warms up by it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += self.training
        return super().forward(x) * min(1.0, self.steps / 10)


class FrozenOnMain(Net):
    def __init__(self) -> None:
        super().__init__()
        if dist.get_rank() == 0:
            self.net[0].requires_grad_(False)


class WiderOnOthers(nn.Module):
    """The width is read from something that differs by rank."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4 + dist.get_rank())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[:, :4]
        return out


class Drifting(Quantized):
    """The codebook is no buffer, and each rank's follows its own batches."""

    def __init__(self) -> None:
        super().__init__()
        del self.codebook, self.total, self.count
        self.codebook = torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
        self.total = self.codebook.clone()
        self.count = torch.ones(24)

    def updated(self) -> None:
        pass


class Adjusted(Net):
    """Counts classes on each rank in numpy, and shifts the logits by them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = np.ones(4)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.counts += np.bincount(inputs[:, :4].argmax(1).numpy(), minlength=4)
        prior = torch.from_numpy(self.counts / self.counts.sum()).float()
        return super().forward(inputs) + prior.log()


class Exploding(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1e38 * 10


def summed(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")


# Steps of loops: (model, batch, state)


def inner(model: nn.Module) -> nn.Module:
    module = getattr(model, "module", model)
    assert isinstance(module, nn.Module)
    return module


def set_up(model: nn.Module, state: State) -> None:
    if state:
        return
    state["optimizer"] = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state["scheduler"] = torch.optim.lr_scheduler.LambdaLR(
        state["optimizer"], lambda step: min(1, (step + 1) / 20)
    )
    state["ema"] = AveragedModel(inner(model), multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]
    state["scaler"] = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    state["step"] = 0


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def step(model: nn.Module, batch: Batch, state: State) -> None:
    """All in their places."""
    set_up(model, state)
    state["optimizer"].zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(model, batch)
    state["scaler"].scale(loss).backward()
    state["scaler"].unscale_(state["optimizer"])
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    state["scaler"].step(state["optimizer"])
    state["scaler"].update()
    state["scheduler"].step()
    state["ema"].update_parameters(inner(model))
    state["step"] += 1


def accumulating(model: nn.Module, batch: Batch, state: State) -> None:
    """Two micro-batches a step, the first under no_sync."""
    if not state:
        state["optimizer"], state["step"] = torch.optim.SGD(model.parameters(), lr=0.1), 0
    state["step"] += 1
    last = state["step"] % 2 == 0
    quiet = contextlib.nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync()  # type: ignore[operator]
    with quiet:
        (loss_of(model, batch) / 2).backward()  # type: ignore[no-untyped-call]
    if last:
        state["optimizer"].step()
        state["optimizer"].zero_grad()


def adversarial(model: nn.Module, batch: Batch, state: State) -> None:
    """Two optimizers, one after the other."""
    whole = inner(model)
    assert isinstance(whole, GAN)
    if not state:
        state["d"] = torch.optim.Adam(whole.d.parameters(), lr=1e-3)
        state["g"] = torch.optim.Adam(whole.g.parameters(), lr=1e-3)
    for name in ("d", "g"):
        sign = 1 if name == "d" else -1
        state[name].zero_grad()
        (sign * F.softplus(model(batch[0])).mean()).backward()  # type: ignore[no-untyped-call]
        state[name].step()


def noised(model: nn.Module, batch: Batch, state: State) -> None:
    """Sound: its inputs are disturbed at random, by other numbers on each rank."""
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    features, *rest = batch
    loss = loss_of(model, (features + torch.randn_like(features), *rest))
    state["optimizer"].zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    state["optimizer"].step()


def logging(model: nn.Module, batch: Batch, state: State) -> None:
    """The mean loss over ranks is logged, on all of them."""
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = loss_of(model, batch)
    state["optimizer"].zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    state["optimizer"].step()
    mean = loss.detach()
    dist.all_reduce(mean)
    state["logged"] = float(mean) / dist.get_world_size()


def clipped_scaled(model: nn.Module, batch: Batch, state: State) -> None:
    set_up(model, state)
    state["optimizer"].zero_grad()
    state["scaler"].scale(loss_of(model, batch)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    state["scaler"].step(state["optimizer"])
    state["scaler"].update()


def divided(model: nn.Module, batch: Batch, state: State) -> None:
    _plain(model, batch, state, lambda loss: loss / dist.get_world_size())


def past_the_wrap(model: nn.Module, batch: Batch, state: State) -> None:
    """Calls the module within, so that DDP averages nothing."""
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    state["optimizer"].zero_grad()
    loss_of(inner(model), batch).backward()  # type: ignore[no-untyped-call]
    state["optimizer"].step()


def always_quiet(model: nn.Module, batch: Batch, state: State) -> None:
    """no_sync is never left."""
    with model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext():  # type: ignore[operator]
        _plain(model, batch, state)


def skipping(model: nn.Module, batch: Batch, state: State) -> None:
    """A rank leaves the optimizer out where its own loss is high."""
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    state["optimizer"].zero_grad()
    loss = loss_of(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    if dist.get_rank() == 0 or loss < 0:
        state["optimizer"].step()


def never_cleared(model: nn.Module, batch: Batch, state: State) -> None:
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
    state["optimizer"].step()


def of_a_copy(model: nn.Module, batch: Batch, state: State) -> None:
    """The optimizer was made for another model."""
    if not state:
        state["optimizer"] = torch.optim.SGD(
            [parameter.detach().clone() for parameter in model.parameters()], lr=0.1
        )
    _plain(model, batch, state)


def centred(model: nn.Module, batch: Batch, state: State, *, average: bool = False) -> None:
    """A teacher's outputs are centred, as in DINO; the centre is that of the rank's own batches."""
    inputs, _ = batch
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.05)
        state["teacher"], state["center"] = copy.deepcopy(inner(model)), torch.zeros(1, 4)
    with torch.no_grad():
        wanted = state["teacher"](inputs)
    loss = (
        -(F.softmax((wanted - state["center"]) / 0.1, -1) * F.log_softmax(model(inputs) / 0.1, -1)).sum(-1).mean()
    )
    state["optimizer"].zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    state["optimizer"].step()
    state["center"] = 0.9 * state["center"] + 0.1 * wanted.mean(0, keepdim=True)
    if average:
        dist.all_reduce(state["center"])
        state["center"] /= dist.get_world_size()


def centred_together(model: nn.Module, batch: Batch, state: State) -> None:
    centred(model, batch, state, average=True)


def queued(model: nn.Module, batch: Batch, state: State) -> None:
    """A queue of the rank's own outputs beside the batch, as in SwAV."""
    inputs, wanted = batch
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.05)
        state["queue"], state["seen"] = torch.zeros(24, 4), 0
    out = model(inputs)
    pull = (out.mean(0) - state["queue"].mean(0)).square().sum()
    state["optimizer"].zero_grad()
    (F.cross_entropy(out, wanted) + 0.1 * pull).backward()
    state["optimizer"].step()
    state["queue"] = torch.cat([out.detach(), state["queue"]])[:24]
    state["seen"] += int(wanted.sum())


class Half(Net):
    """Weights of 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.bfloat16()

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.bfloat16()).float()


def timid(model: nn.Module, batch: Batch, state: State) -> None:
    """A learning rate whose steps weights of 16 bits round away."""
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=1e-7)
    _plain(model, batch, state)


def clearing_each(model: nn.Module, batch: Batch, state: State) -> None:
    """Clears gradients with each micro-batch."""
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, wanted in zip(batch[0].chunk(4), batch[1].chunk(4), strict=True):
        state["optimizer"].zero_grad()
        (F.cross_entropy(model(inputs), wanted) / 4).backward()  # type: ignore[no-untyped-call]
    state["optimizer"].step()


def pursued(model: nn.Module, batch: Batch, state: State) -> None:
    """Two passes to find inputs that are hard (PGD); their gradients of weights are of no use."""
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, wanted = batch[0].clone().requires_grad_(), batch[1]
    for _ in range(2):
        model.zero_grad()
        F.cross_entropy(model(inputs), wanted).backward()  # type: ignore[no-untyped-call]
        inputs = (inputs + 0.01 * inputs.grad.sign()).detach().requires_grad_()
    model.zero_grad()
    F.cross_entropy(model(inputs), wanted).backward()  # type: ignore[no-untyped-call]
    state["optimizer"].step()


def handed_out(model: Any, batch: Batch, state: State) -> None:
    """Rank 0's gradients for all ranks."""
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.05)
    state["optimizer"].zero_grad()
    with model.no_sync():
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.broadcast(parameter.grad, src=0)
    state["optimizer"].step()


class Pair(nn.Module):
    """Generator and critic, each called by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.judge = nn.Linear(8, 16), nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, which: str, given: Tensor) -> Tensor:
        return self.make(given) if which == "make" else self.judge(given)  # type: ignore[no-any-return]


def by_hand(model: nn.Module, batch: Batch, state: State, *, clear: bool = True) -> None:
    """Past the wrapped model, with gradients that the step averages itself."""
    pair: Any = inner(model)
    if not state:
        state["make"] = torch.optim.Adam(pair.make.parameters(), lr=1e-3)
        state["judge"] = torch.optim.Adam(pair.judge.parameters(), lr=1e-3)
    real = batch[0]
    made = pair.make(torch.randn(len(real), 8))
    if clear:
        state["judge"].zero_grad()
    loss = F.softplus(-pair.judge(real)) + F.softplus(pair.judge(made.detach()))
    loss.mean().backward()  # type: ignore[no-untyped-call]
    average(pair.judge)
    state["judge"].step()
    state["make"].zero_grad()
    F.softplus(-pair.judge(made)).mean().backward()  # type: ignore[no-untyped-call]
    average(pair.make)
    state["make"].step()


def by_hand_never_cleared(model: nn.Module, batch: Batch, state: State) -> None:
    by_hand(model, batch, state, clear=False)


def average(part: nn.Module) -> None:
    for parameter in part.parameters():
        if parameter.grad is not None and dist.is_initialized():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(dist.get_world_size())


def logged_on_main(model: nn.Module, batch: Batch, state: State) -> None:
    _plain(model, batch, state)
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))


def scheduled_on_main(model: nn.Module, batch: Batch, state: State) -> None:
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
        state["scheduler"] = torch.optim.lr_scheduler.StepLR(state["optimizer"], 1, 0.5)
    _plain(model, batch, state)
    if dist.get_rank() == 0:
        state["scheduler"].step()


def averaged_on_main(model: nn.Module, batch: Batch, state: State) -> None:
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
        state["ema"] = AveragedModel(inner(model))
    _plain(model, batch, state)
    if dist.get_rank() == 0:
        state["ema"].update_parameters(inner(model))


def _plain(model: nn.Module, batch: Batch, state: State, change: Any = lambda loss: loss) -> None:
    if "optimizer" not in state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    state["optimizer"].zero_grad()
    change(loss_of(model, batch)).backward()
    state["optimizer"].step()


# Checkpoints: (model, state, path)


def save(model: nn.Module, state: State, path: str, *without: str) -> None:
    if dist.get_rank() == 0:
        saved = {"model": inner(model).state_dict()}
        for name, value in state.items():
            if name not in without:
                saved[name] = value.state_dict() if hasattr(value, "state_dict") else value
        torch.save(saved, path)


def save_on_all(model: nn.Module, state: State, path: str) -> None:
    """Every rank writes the same file."""
    others = {name: value.state_dict() if hasattr(value, "state_dict") else value for name, value in state.items()}
    torch.save({"model": inner(model).state_dict(), **others}, path)
    dist.barrier()


def load(model: nn.Module, state: State, path: str) -> None:
    saved = torch.load(path, weights_only=True)
    inner(model).load_state_dict(saved.pop("model"))
    for name, value in saved.items():
        if hasattr(state[name], "load_state_dict"):
            state[name].load_state_dict(value)
        else:
            state[name] = value


def save_no_scheduler(model: nn.Module, state: State, path: str) -> None:
    save(model, state, path, "scheduler")


def save_no_scaler(model: nn.Module, state: State, path: str) -> None:
    save(model, state, path, "scaler")


def save_no_ema(model: nn.Module, state: State, path: str) -> None:
    save(model, state, path, "ema")


def save_no_step(model: nn.Module, state: State, path: str) -> None:
    save(model, state, path, "step")


def load_on_main(model: nn.Module, state: State, path: str) -> None:
    """The optimizer of rank 0 alone goes on."""
    saved = torch.load(path, weights_only=True)
    inner(model).load_state_dict(saved["model"])
    if dist.get_rank() == 0:
        for name, value in state.items():
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(saved[name])


class Averages:
    """Weights averaged over steps, by name."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            self.shadow[name].lerp_(parameter.detach(), 0.1)


class Trainer:
    """The loop's objects in one of the user's own, which holds the model as well."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.averages, self.seconds = Averages(inner(model)), 0.0

    def step(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        loss_of(self.model, batch).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.scheduler.step()
        self.averages.update(inner(self.model))
        self.seconds += 0.5


def by_trainer(model: nn.Module, batch: Batch, state: State) -> None:
    state.setdefault("trainer", Trainer(model)).step(batch)


def save_trainer(model: nn.Module, state: State, path: str, *without: str) -> None:
    trainer = state["trainer"]
    saved = {name: getattr(trainer, name).state_dict() for name in ("optimizer", "scheduler")}
    saved |= {"model": inner(model).state_dict(), "averages": trainer.averages.shadow}
    if dist.get_rank() == 0:
        torch.save({name: value for name, value in saved.items() if name not in without}, path)
    dist.barrier()


def load_trainer(model: nn.Module, state: State, path: str) -> None:
    saved = torch.load(path, weights_only=True)
    inner(model).load_state_dict(saved["model"])
    trainer = state["trainer"] = Trainer(model)
    for name in ("optimizer", "scheduler"):
        if name in saved:
            getattr(trainer, name).load_state_dict(saved[name])
    trainer.averages.shadow.update(saved.get("averages", {}))


def save_no_averages(model: nn.Module, state: State, path: str) -> None:
    save_trainer(model, state, path, "averages")


def save_no_rates(model: nn.Module, state: State, path: str) -> None:
    save_trainer(model, state, path, "scheduler")


def load_assigned(model: nn.Module, state: State, path: str) -> None:
    """Puts the tensors of the file in the place of the parameters."""
    saved = torch.load(path, weights_only=True)
    inner(model).load_state_dict(saved.pop("model"), assign=True)
    for name, value in saved.items():
        state[name].load_state_dict(value)


def plain(model: nn.Module, batch: Batch, state: State) -> None:
    if "optimizer" not in state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    state["optimizer"].zero_grad()
    loss = model(**batch)["loss"] if isinstance(batch, dict) else loss_of(model, batch)
    loss.backward()
    state["optimizer"].step()


def load_untied(model: nn.Module, state: State, path: str) -> None:
    """The weight that embeds and decodes is two after loading."""
    saved = torch.load(path, weights_only=True)
    inner(model).load_state_dict(saved["model"])
    whole = inner(model)
    assert isinstance(whole, GPT)
    whole.lm_head.weight = nn.Parameter(saved["model"]["lm_head.weight"].clone())
    state["optimizer"].load_state_dict(saved["optimizer"])
