"""The built-in models and their data: small, with a truth that can be learned, and alike on every machine.

Neither has BatchNorm nor dropout: the gradient of ranks together equals that of one process on the joined batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

VOCABULARY = 64  # tokens: chosen, a walk among 64 is learned within some steps
LENGTH = 32  # tokens of a sample: chosen, small enough for a step of milliseconds on a core
CLASSES = 8  # of images, one an angle of the wave
SIDE = 16  # pixels: chosen, as above
SAMPLES = 1536  # that are made, 396 KiB of walks or 4.5 MiB of images; a longer dataset repeats them
_WIDTH = 128  # of an embedding: chosen, a step takes milliseconds on a core
_HEADS = 4  # of attention: 32 numbers each


class TransformerBlock(nn.Module):
    """Attention and a multilayer perceptron, both added to what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Samples x positions x width."""
        x = x + self._attention(self.before_attention(x))
        mixed: Tensor = x + self.mlp(self.before_mlp(x))
        return mixed

    def _attention(self, x: Tensor) -> Tensor:
        """Written out: the fused kernels of GPUs add up their gradients in any order."""
        samples, length, _ = x.shape
        parts: Tensor = self.qkv(x).view(samples, length, 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        out: Tensor = self.out((weights @ value).transpose(1, 2).reshape(samples, length, _WIDTH))
        return out


class Transformer(nn.Module):
    """Predicts the next token."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, _WIDTH), nn.Embedding(LENGTH, _WIDTH)
        self.blocks = nn.ModuleList(TransformerBlock() for _ in range(layers))
        self.last, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Samples x tokens -> samples x tokens of the vocabulary x positions, as cross_entropy takes them."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.last(x))
        return scores.transpose(1, 2)


class ConvNet(nn.Module):
    """Says which of the patterns an image shows."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *self._layer(3, width), *self._layer(width, 2 * width), *self._layer(2 * width, 4 * width)
        )
        self.head = nn.Linear(4 * width, CLASSES)

    @staticmethod
    def _layer(wide: int, wider: int) -> tuple[nn.Module, ...]:
        return nn.Conv2d(wide, wider, 3, stride=2, padding=1), nn.GroupNorm(8, wider), nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        """Samples x 3 x side x side -> samples x classes."""
        scores: Tensor = self.head(self.layers(images).mean((2, 3)))
        return scores


class Walks(Dataset[tuple[Tensor, Tensor]]):
    """Sequences in which each token follows from the one before, but for one in eight."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self._samples = samples
        chance = torch.Generator().manual_seed(1)
        self._walks = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), generator=chance)
        stays = torch.rand(SAMPLES, LENGTH + 1, generator=chance) > 1 / 8
        for place in range(1, LENGTH + 1):
            follows = (5 * self._walks[:, place - 1] + 3) % VOCABULARY
            self._walks[:, place] = torch.where(stays[:, place], follows, self._walks[:, place])

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        walk = self._walks[index % SAMPLES]
        return walk[:-1], walk[1:]


class Patterns(Dataset[tuple[Tensor, Tensor]]):
    """Images that show a wave in one of some directions, under noise."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self._samples = samples
        self._shown = torch.arange(SAMPLES) % CLASSES
        rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
        angles = math.pi * self._shown.view(-1, 1, 1, 1) / CLASSES
        waves = torch.sin(rows * torch.cos(angles) + columns * torch.sin(angles))
        noise = torch.randn(SAMPLES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
        self._images = waves + noise / 2

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._images[index % SAMPLES], self._shown[index % SAMPLES]


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The loss of both."""
    given, wanted = batch
    return functional.cross_entropy(model(given).float(), wanted)


MODELS: dict[str, type[nn.Module]] = {"transformer": Transformer, "conv": ConvNet}
DATA: dict[str, Callable[[int], Dataset[tuple[Tensor, Tensor]]]] = {"transformer": Walks, "conv": Patterns}
