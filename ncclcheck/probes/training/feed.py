"""The batches of this rank, epoch by epoch: the built-in data or the user's own, under a sampler for all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from ncclcheck.probes.training.inject import Faults

Batch = Any
_COUNTING_S = 3.0  # to count the batches of a loader that does not tell its length: chosen


@dataclass
class Feed:
    """A loader and how to begin an epoch of it. least: the batches that every rank has in an epoch. counted_to: a
    stream without a length was read up to so many batches to count them; 0: it has a length.
    """

    loader: DataLoader[Any]
    faults: Faults
    least: int = 0
    counted_to: int = 0

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Those of one epoch that all ranks have; the dataset's own end is never run into."""
        self.begin(epoch)
        for batch in islice(self.loader, self.least or None):
            self.faults.before_batch()
            yield batch

    def begin(self, epoch: int) -> None:
        """Tell whatever shuffles which epoch it is."""
        if self.faults.has("no-set-epoch"):
            return
        for part in (self.loader.dataset, self.loader.sampler, self.loader.batch_sampler):
            if (set_epoch := getattr(part, "set_epoch", None)) is not None:
                set_epoch(epoch)

    def length(self, most: int) -> int:
        """Batches that this rank has in an epoch; of a stream as many as are found up to `most`."""
        try:
            return self.faults.batches(len(self.loader))
        except TypeError:  # an IterableDataset without a length
            return self.faults.batches(self._counted(most))

    def _counted(self, most: int) -> int:
        self.counted_to = most
        count, until = 0, time.monotonic() + _COUNTING_S
        for _ in islice(self.loader, most):
            count += 1
            if time.monotonic() > until:
                return most
        return count

    def indices(self, epoch: int) -> tuple[list[int], str]:
        """What this rank reads in an epoch, without reading it; or why nobody can say."""
        if isinstance(self.loader.dataset, IterableDataset):
            return [], "an IterableDataset has no indices"
        self.begin(epoch)
        sampler = self.loader.batch_sampler
        if sampler is None:
            return [int(index) for index in self.loader.sampler], ""
        return [int(index) for group in sampler for index in group], ""

    def index(self, number: int, row: int, batch: Batch) -> int | None:
        """Of the dataset, of a row of the batch of this number in the first epoch; None: that is not known."""
        try:
            again = [self.indices(0)[0] for _ in range(2)]
            index = again[0][number * (self.loader.batch_size or samples_of(batch)) + row]
            alike = again[0] == again[1] and _equal(self.loader.dataset[index], batch, row)
        except Exception:  # whatever the user's sampler or dataset says to being asked once more
            return None
        return index if alike else None


def _equal(sample: Any, batch: Batch, row: int) -> bool:
    """Whether a sample's numbers and tensors are those of this row; what is drawn anew differs."""
    if isinstance(batch, dict):
        return isinstance(sample, dict) and all(_equal(sample[key], value, row) for key, value in batch.items())
    if isinstance(batch, list | tuple):
        return len(sample) == len(batch) and all(
            _equal(value, part, row) for value, part in zip(sample, batch, strict=True)
        )
    if not isinstance(batch, Tensor) or batch.is_floating_point():
        return True
    return bool((torch.as_tensor(sample) == batch[row]).all())


def distributed(dataset: Dataset[Any], batch: int, *, shuffle: bool = True, **more: Any) -> DataLoader[Any]:
    """A loader of one rank's share."""
    world, rank = dist.get_world_size(), dist.get_rank()
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, world, rank, shuffle=shuffle, seed=3)
    return DataLoader(dataset, batch_size=batch, sampler=sampler, **{"drop_last": True, **more})


def moved(batch: Batch, device: torch.device) -> Batch:
    """The batch with all of its tensors on the device."""
    return mapped(batch, lambda tensor: tensor.to(device, non_blocking=True))


def mapped(batch: Batch, change: Callable[[Tensor], Any]) -> Batch:
    """The batch with each of its tensors changed."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {key: mapped(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, change) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(mapped(value, change) for value in batch)
    return batch


def tensors_of(batch: Batch) -> list[Tensor]:
    """All tensors of a batch, in a fixed order."""
    tensors: list[Tensor] = []
    mapped(batch, tensors.append)
    return tensors


def samples_of(batch: Batch) -> int:
    """How many samples a batch has: the first dimension of its first tensor."""
    return next((tensor.shape[0] for tensor in tensors_of(batch) if tensor.dim()), 1)
