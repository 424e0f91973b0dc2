"""Generators that the user's code makes while it reads a sample or puts a batch together, and their seeds."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from msgspec import Struct

from ncclcheck.probes.dataloader import ours

_LEAST = 4  # samples, or batches of other samples: fewer seeds may be alike by chance; chosen
_LEAST_BATCHES = 2  # that are made in one visit
BATCH = -1  # the position of what a batch is made of


class Local(Struct):
    """A line that makes a generator with a whole number as its seed: each time one and the same.

    call: `numpy.random.default_rng`; place: `train.py:20 in __call__`; batch: in the collate function.
    """

    call: str
    place: str
    seed: int
    count: int
    batch: bool = False


class WatchedDraws:
    """What was made. at: the position of the sample that is read, BATCH: of a batch."""

    def __init__(self) -> None:
        self.at = 0
        self._made: dict[tuple[str, str, bool], list[tuple[int, int]]] = {}

    def note(self, call: str, seed: Any) -> None:
        """A generator begins with this seed."""
        place = ours.users_line()
        if place and isinstance(seed, int) and not isinstance(seed, bool):
            self._made.setdefault((call, place, self.at == BATCH), []).append((self.at, int(seed)))

    def constant(self) -> list[Local]:
        """Lines whose seed was the same for all samples, of several, or for all batches."""
        lines = []
        for (call, place, batch), made in self._made.items():
            count = len(made) if batch else len({at for at, _ in made})
            if count >= (_LEAST_BATCHES if batch else _LEAST) and len({seed for _, seed in made}) == 1:
                lines.append(Local(call, place, made[0][1] % 2**53, count, batch))
        return lines


@contextmanager
def watched() -> Iterator[WatchedDraws]:
    """As long as it lasts, generators that are made with a seed are noted."""
    seen = WatchedDraws()
    put: list[tuple[Any, str, Any]] = []
    try:
        for module, name, instead in _instead(seen):
            original = getattr(module, name)
            for owner in (module, *_users_modules()):
                put += [(owner, key, original) for key, value in [*vars(owner).items()] if value is original]
            for owner, key, _ in put:
                if getattr(owner, key, None) is original:
                    setattr(owner, key, instead)
        yield seen
    finally:
        for owner, key, original in put:
            setattr(owner, key, original)


class _AsBefore(type):
    """Of the class that stands for another: its instances are those of the other."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])


def _instead(seen: WatchedDraws) -> list[tuple[Any, str, Any]]:
    class Random(random.Random, metaclass=_AsBefore):
        def __init__(self, x: Any = None) -> None:
            seen.note("random.Random", x)
            super().__init__(x)

    class OfTorch(_AsBefore, type(torch.Generator)):  # type: ignore[misc]
        pass

    class Generator(torch.Generator, metaclass=OfTorch):
        def manual_seed(self, seed: int) -> torch.Generator:
            seen.note("torch.Generator().manual_seed", seed)
            return super().manual_seed(seed)

    replaced: list[tuple[Any, str, Any]] = [(random, "Random", Random), (torch, "Generator", Generator)]
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return replaced
    make = numpy.random.default_rng

    def default_rng(seed: Any = None) -> Any:
        seen.note("numpy.random.default_rng", seed)
        return make(seed)

    class RandomState(numpy.random.RandomState, metaclass=_AsBefore):  # type: ignore[misc, name-defined]
        def __init__(self, seed: Any = None) -> None:
            seen.note("numpy.random.RandomState", seed)
            super().__init__(seed)

    return [
        *replaced,
        (numpy.random, "default_rng", default_rng),
        (numpy.random, "RandomState", RandomState),
    ]


def _users_modules() -> list[Any]:
    files = [(module, getattr(module, "__file__", None)) for module in [*sys.modules.values()]]
    return [module for module, file in files if isinstance(file, str) and ours.is_users(file)]
