"""The indices that a rank's sampler gives, epoch by epoch; no sample is read."""

from __future__ import annotations

import operator
import os
import time
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, RandomSampler, Subset, WeightedRandomSampler

from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.randomness.seeds import states
from ncclcheck.probes.dataloader.ranks.echo import has_begun, iterates_itself, loader_of_indices
from ncclcheck.probes.dataloader.ranks.streams.dry import used_up_sampler
from ncclcheck.probes.dataloader.views import Epoch, RankView

_MOST = 2_000_000  # indices of an epoch that are kept, 8 bytes each: chosen, 16 MB a rank
_MOST_S = 1.0  # for the order of one epoch, without reading a sample: chosen


def sample_orders(
    made: FactoryLoader, view: RankView, folder: str, for_epoch: Callable[[int], FactoryLoader] | None
) -> None:
    """Two epochs as given, two with set_epoch, and two of loaders that the factory made for their epoch."""
    _write_table(made.dataset, view, folder)
    setters = _setters(made)
    loader = loader_of_indices(made)
    _describe(loader, view)

    def take(name: str, source: Any) -> None:
        path = os.path.join(folder, f"{view.rank}-{name}")
        view.epochs.append(_epoch(name, path, _indices_of(source)))

    before = states()
    take("first", loader)
    view.sampled = {name: (before[name], state) for name, state in states().items() if name in before}
    take("second", loader)
    first, second = view.epochs
    if first.samples and first.ended and second.ended and not second.samples:
        view.dry = used_up_sampler(loader.batch_sampler or loader.sampler)
    view.set_epoch = bool(setters)
    view.setter = next(iter(setters), "")
    for number in (0, 1) if setters else ():
        for setter in setters.values():
            setter(number)
        take(f"set{number}", loader)
    if for_epoch is not None:
        for number in (0, 1):
            take(f"keyword{number}", loader_of_indices(for_epoch(number)))


def read_indices(path: str) -> array[int]:
    """What an epoch left in its file."""
    positions = array("q")
    with open(path, "rb") as file:
        positions.frombytes(file.read())
    return positions


def _describe(loader: Any, view: RankView) -> None:
    sampler, batches = loader.sampler, loader.batch_sampler
    own = batches is not None and type(batches) is not BatchSampler
    inner = getattr(batches, "sampler", None if own else sampler)
    view.sampler = type(batches if own else inner).__name__
    view.own_batches = own and not isinstance(batches, list | tuple)
    view.batch = _number(loader.batch_size or getattr(batches, "batch_size", None))
    view.replicas = _number(getattr(sampler, "num_replicas", getattr(inner, "num_replicas", None)))
    view.seed, view.as_rank = (_of_sampler((sampler, inner), name) for name in ("seed", "rank"))
    view.drop_last = any(bool(getattr(part, "drop_last", False)) for part in (loader, batches, sampler, inner))
    view.replacement = any(_draws_again(sampling) for sampling in (sampler, inner))


def _of_sampler(samplers: tuple[Any, Any], name: str) -> int | None:
    seeds = (getattr(sampler, name, None) for sampler in samplers)
    return next((seed % 2**53 for seed in seeds if isinstance(seed, int) and not isinstance(seed, bool)), None)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= 1_000_000 else None


def _draws_again(sampler: Any) -> bool:
    """Such a sampler leaves out and repeats samples by design."""
    if isinstance(sampler, RandomSampler):
        return bool(sampler.replacement) or sampler._num_samples is not None
    return isinstance(sampler, WeightedRandomSampler)


def _setters(made: FactoryLoader) -> dict[str, Callable[[int], Any]]:
    """The set_epoch of the user's loader, which a loop calls; else where frameworks look for one."""
    if callable(own := getattr(made.own, "set_epoch", None)):
        return {"loader": own}
    loader: Any = made.make_loader(num_workers=0)
    batches = loader.batch_sampler
    places = {
        "loader.sampler": loader.sampler,
        "loader.batch_sampler": batches,
        "loader.batch_sampler.sampler": getattr(batches, "sampler", None),
        "loader.dataset": loader.dataset,
    }
    by_place: dict[int, tuple[str, Callable[[int], Any]]] = {}
    for where, place in places.items():
        if callable(setter := getattr(place, "set_epoch", None)):
            by_place.setdefault(id(place), (where, setter))
    return dict(by_place.values())


def _indices_of(loader: Any) -> Iterable[list[Any]]:
    if has_begun(loader):
        return islice(loader.batch_sampler, len(loader))
    if iterates_itself(loader):
        return (batch if isinstance(batch, list) else [batch] for batch in loader)
    if loader.batch_sampler is not None:
        return loader.batch_sampler  # type: ignore[no-any-return]
    return ([index] for index in loader.sampler)


def _epoch(name: str, path: str, source: Iterable[Any]) -> Epoch:
    positions, batches, ended, end = array("q"), 0, True, time.monotonic() + _MOST_S
    for batch in source:
        positions.extend(map(_index_of, batch))
        batches += 1
        if len(positions) > _MOST or (batches % 256 == 0 and time.monotonic() > end):
            ended = False
            break
    with open(path, "wb") as file:
        positions.tofile(file)
    return Epoch(name=name, file=path, samples=len(positions), batches=batches, ended=ended)


def _index_of(item: Any) -> int:
    """The index; of a pair that says more of the sample, as YOLOX's (mosaic, index), the last number in it."""
    parts = [part for part in item if not isinstance(part, bool)] if isinstance(item, tuple | list) else [item]
    for part in reversed(parts):
        with suppress(TypeError):
            return operator.index(part)
    raise TypeError(f"the sampler gives a {type(item).__name__}, and not the index of a sample")


def _write_table(dataset: Any, view: RankView, folder: str) -> None:
    """Indices of a Subset count within it alone: what they are in the dataset below it."""
    if isinstance(dataset, Subset):
        path = os.path.join(folder, f"{view.rank}-table")
        with open(path, "wb") as file:
            array("q", map(operator.index, dataset.indices)).tofile(file)
        view.table, view.below = path, len(dataset.dataset)  # type: ignore[arg-type]
