"""One point of the curve: how many samples a second a loader gives once its workers are warm."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any

import torch
from torch.utils.data import IterableDataset

from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.facts.data.speed import Point

_PARTS = 4  # of the measured batches, whose rates show the spread of a point: quarters, as `beats` compares them
_PREFETCH = 2  # torch's own default


@dataclass(frozen=True)
class PaceSetting:
    """What differs from point to point. prefetch 0: the loader's own, or torch's default."""

    workers: int
    prefetch: int = 0
    to_gpu: bool = False
    pinned: bool = False


@dataclass(frozen=True)
class PaceWork:
    """What is the same for all points. items: what the sampler gives, again and again; batch: 0 where the loader
    does not batch, and a sample may then be a batch in itself.
    """

    items: Sequence[Any]
    batch: int
    seconds: float

    @property
    def samples(self) -> int:
        """In what the loader gives at once."""
        first = self.items[0] if self.items and not self.batch else None
        return len(first) if isinstance(first, list | tuple) else max(1, self.batch)


class _Endless:
    """A sampler that never ends: an epoch's end would start the workers anew."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return cycle(self._items)

    def __len__(self) -> int:
        return 2**40


class _EndlessStream(IterableDataset[Any]):
    """A stream begun again at its end; for everything else it is the user's."""

    def __init__(self, stream: Any) -> None:
        self.__dict__["_stream"] = stream

    def __iter__(self) -> Iterator[Any]:
        empty = False
        while not empty:
            empty = True
            for item in self._stream:
                empty = False
                yield item

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_stream"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_stream"], name, value)


def point(made: FactoryLoader, setting: PaceSetting, work: PaceWork) -> Point:
    """In a child. The batches that were made while workers started do not count."""
    begin = time.perf_counter()
    batches = iter(_loader(made, setting, work))
    _take(next(batches), setting)
    start = time.perf_counter() - begin
    prefetch = _prefetch(made, setting)
    for _ in range(setting.workers * prefetch):
        _take(next(batches), setting)
    ticks = _ticks(batches, setting, work)
    rates = _rates(ticks, work.samples)
    samples = (len(ticks) - 1) * work.samples
    return Point(
        workers=setting.workers,
        prefetch=prefetch,
        to_gpu=setting.to_gpu,
        pinned=setting.pinned,
        samples=samples,
        seconds=ticks[-1] - ticks[0],
        samples_s=samples / max(ticks[-1] - ticks[0], 1e-9),
        low=min(rates),
        high=max(rates),
        start_s=start,
    )


def _prefetch(made: FactoryLoader, setting: PaceSetting) -> int:
    own = setting.prefetch or made.loader.get("prefetch_factor") or _PREFETCH
    return int(own) if setting.workers else 0


def _loader(made: FactoryLoader, setting: PaceSetting, work: PaceWork) -> Iterable[Any]:
    changes: dict[str, Any] = {"num_workers": setting.workers, "pin_memory": setting.pinned}
    if made.iterable:
        changes["dataset"] = _EndlessStream(made.dataset)
    else:
        changes["sampler"] = _Endless(work.items)
    if work.batch:
        changes["batch_size"] = work.batch
    if setting.prefetch:
        changes["prefetch_factor"] = setting.prefetch
    return made.make_loader(**changes)


def _take(batch: Any, setting: PaceSetting) -> None:
    if setting.to_gpu:
        _to_gpu(batch)
        torch.cuda.synchronize()


def _to_gpu(part: Any) -> None:
    if isinstance(part, torch.Tensor):
        part.to("cuda", non_blocking=True)
    elif isinstance(part, dict):
        _to_gpu(list(part.values()))
    elif isinstance(part, list | tuple):
        for item in part:
            _to_gpu(item)


def _ticks(batches: Iterator[Any], setting: PaceSetting, work: PaceWork) -> list[float]:
    """When each batch came, from the one before the first that counts; at least one for each part."""
    ticks = [time.perf_counter()]
    end = ticks[0] + work.seconds
    for batch in batches:
        _take(batch, setting)
        ticks.append(time.perf_counter())
        if ticks[-1] > end and len(ticks) > _PARTS:
            break
    return ticks


def _rates(ticks: list[float], batch: int) -> list[float]:
    """Samples a second of each quarter of the batches."""
    count = len(ticks) - 1
    ends = [round(count * part / _PARTS) for part in range(_PARTS + 1)]
    return [(last - first) * batch / max(ticks[last] - ticks[first], 1e-9) for first, last in pairwise(ends)]
