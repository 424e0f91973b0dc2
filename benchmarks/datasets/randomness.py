"""Defects of randomness: streams that repeat, that nobody seeds, that a cache has frozen."""

from __future__ import annotations

import functools
import os
import random
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.datasets.material import Samples, sample

_NOISE = np.random.default_rng(7)


class PrivateNumpyGenerator(Samples):
    """A NumPy generator of the dataset's own: all workers and epochs draw the same numbers."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Tensor:
        return sample(index) + float(self.rng.normal())


class PrivatePythonRandom(Samples):
    """`random.Random(0)` for the flip."""

    def __init__(self) -> None:
        self.random = random.Random(0)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = sample(index)
        return (image.flip(0) if self.random.random() < 0.5 else image), index % 10


class PrivateTorchGenerator(Samples):
    """A torch generator of the dataset's own, which torch does not reseed in workers."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __getitem__(self, index: int) -> Tensor:
        return sample(index) * torch.rand(1, generator=self.generator)


class LegacyRandomState(Samples):
    """`np.random.RandomState` inside a list of transforms."""

    def __init__(self) -> None:
        self.transforms = [{"name": "jitter", "state": np.random.RandomState(3)}]

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        state: Any = self.transforms[0]["state"]
        return {"image": sample(index) + state.randint(100), "label": torch.tensor(index % 10)}


def _jitter(seed: int) -> Callable[[Tensor], Tensor]:
    rng = np.random.default_rng(seed)

    def jitter(image: Tensor) -> Tensor:
        return image + float(rng.uniform())

    return jitter


class GeneratorInClosure(Samples):
    """The private generator is a variable of a closure."""

    def __init__(self) -> None:
        self.transform = _jitter(0)

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(sample(index))


class GeneratorOfModule(Samples):
    """The private generator is a global of the module, copied into every worker by the fork."""

    def __getitem__(self, index: int) -> Tensor:
        return sample(index) + float(_NOISE.normal())


class NumpyNoise(Samples):
    """Right by itself: noise of NumPy's global generator."""

    def __getitem__(self, index: int) -> Tensor:
        return sample(index) + float(np.random.normal())


def _seed_constant(worker: int) -> None:
    del worker
    np.random.seed(42)


def _seed_by_worker(worker: int) -> None:
    np.random.seed(worker)


def _seed_everything(worker: int) -> None:
    del worker
    random.seed(1234)
    np.random.seed(1234)
    torch.manual_seed(1234)


def worker_init_constant() -> DataLoader[Any]:
    """`worker_init_fn` seeds every worker alike."""
    return DataLoader(NumpyNoise(), batch_size=8, num_workers=2, worker_init_fn=_seed_constant)


def worker_init_by_id() -> DataLoader[Any]:
    """`worker_init_fn` seeds by the worker's number only: every epoch repeats."""
    return DataLoader(NumpyNoise(), batch_size=8, num_workers=2, worker_init_fn=_seed_by_worker)


class AllNoise(Samples):
    """Right by itself: all three global generators are used."""

    def __getitem__(self, index: int) -> Tensor:
        return sample(index) + random.random() + float(np.random.random()) + torch.rand(1)


def worker_init_seed_everything() -> tuple[AllNoise, dict[str, Any]]:
    """A `seed_everything` of one's own as `worker_init_fn`."""
    return AllNoise(), {"batch_size": 4, "num_workers": 3, "worker_init_fn": _seed_everything}


class _ReseedingLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        torch.manual_seed(42)
        random.seed(42)
        return super().__iter__()


def reseeded_each_epoch() -> DataLoader[Any]:
    """The loader seeds everything anew at the start of each epoch: the augmentation repeats."""
    return _ReseedingLoader(AllNoise(), batch_size=8, num_workers=2)


class _ResettingLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        self.generator.manual_seed(0)
        return super().__iter__()


def generator_reset_each_epoch() -> DataLoader[Any]:
    """The loader's generator begins anew each epoch: order and augmentation repeat."""
    return _ResettingLoader(AllNoise(), batch_size=8, shuffle=True, num_workers=2, generator=torch.Generator())


class FrozenByCache(Samples):
    """`lru_cache` around reading and augmenting: drawn once, then for ever."""

    @functools.lru_cache(None)  # noqa: B019
    def _load(self, index: int) -> Tensor:
        return sample(index) + torch.randn(1)

    def __getitem__(self, index: int) -> Tensor:
        return self._load(index)


class FrozenInDict(Samples):
    """A dict of finished samples, random crop included."""

    def __init__(self) -> None:
        self.cache: dict[int, Tensor] = {}

    def __getitem__(self, index: int) -> Tensor:
        if index not in self.cache:
            start = int(torch.randint(0, 32, (1,)))
            self.cache[index] = sample(index)[start : start + 32].clone()
        return self.cache[index]


class ReseedsTorch(Samples):
    """`torch.manual_seed(0)` in every sample: the same noise everywhere, in the model as well."""

    def __getitem__(self, index: int) -> Tensor:
        torch.manual_seed(0)
        return sample(index) + torch.randn(1)


class ReseedsByIndex(Samples):
    """`random.seed(index)` in every sample: each epoch repeats, and the global stream is lost."""

    def __getitem__(self, index: int) -> Tensor:
        random.seed(index)
        return sample(index) + random.random()


def same_seed_on_ranks() -> DataLoader[Any]:
    """Every rank seeds 42: their workers draw the same augmentation."""
    random.seed(42)
    np.random.seed(42)
    torch.manual_seed(42)
    return DataLoader(AllNoise(), batch_size=8, num_workers=2)


class ClockSeeded(Samples):
    """Seeded by the clock: no run can be repeated."""

    def __getitem__(self, index: int) -> Tensor:
        return sample(index) + random.Random(time.time_ns()).random()


class UrandomNoise(Samples):
    """Noise from `os.urandom`."""

    def __getitem__(self, index: int) -> Tensor:
        return sample(index) + torch.frombuffer(bytearray(os.urandom(64)), dtype=torch.uint8)


class UuidChoice(Samples):
    """`uuid4` picks the crop."""

    def __getitem__(self, index: int) -> Tensor:
        start = uuid.uuid4().int % 32
        return sample(index)[start : start + 32].clone()


class LabelByHash(Samples):
    """Labels from `hash()` of a name: other labels in every interpreter."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return sample(index), hash(f"class {index % 10}") % 1000
