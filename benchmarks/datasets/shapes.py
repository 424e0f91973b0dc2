"""Defects of samples that do not stack, of loader options, of reading: exceptions, None, lengths that lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from benchmarks.datasets.material import COUNT, Samples, sample, scattered, table


class RareDouble(Samples):
    """float64 at every 97th index."""

    def __getitem__(self, index: int) -> Tensor:
        return sample(index).double() if index % 97 == 96 else sample(index)


class GreyscaleImages(Samples):
    """Some pictures have no channel axis."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = sample(index).reshape(8, 8)
        return (image if index % 41 == 17 else image.expand(3, 8, 8).clone()), index % 10


class FourChannels(Samples):
    """A few PNG files have an alpha channel."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        channels = 4 if index in {60, 61} else 3
        return {"image": sample(index).reshape(8, 8).repeat(channels, 1, 1), "label": torch.tensor(index % 10)}


class RaggedTokens(Samples):
    """Sentences of different length and the default collate."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"tokens": torch.arange(5 + index % 20), "label": torch.tensor(index % 2)}


class SqueezedBatchOfOne(Samples):
    """`squeeze()` takes the axis of those that have one box: 1-D among 2-D."""

    def __getitem__(self, index: int) -> Tensor:
        boxes = sample(index)[:8].reshape(2, 4)
        return boxes[:1].squeeze() if index % 50 == 3 else boxes


def _stacked(batch: list[Tensor]) -> Tensor:
    return torch.stack(batch)


def collate_that_does_not_pad() -> DataLoader[Any]:
    """A collate function of one's own that only stacks."""
    rows = [torch.arange(5.0 + index % 3) for index in range(COUNT)]
    return DataLoader(rows, batch_size=8, collate_fn=_stacked)  # type: ignore[arg-type]


class NoneOnError(Samples):
    """None where a file could not be read."""

    def __getitem__(self, index: int) -> Tensor | None:
        return None if index == 144 else sample(index)


class NoneLabel(Samples):
    """Samples without annotation have the label None."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": sample(index), "label": None if index % 30 == 7 else index % 10}


class ExtraKey(Samples):
    """A key that only some samples have."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        parts = {"image": sample(index)}
        if index % 25 != 9:
            parts["mask"] = sample(index) > 0
        return parts


class PairOrTriple(Samples):
    """A tuple of two, and now and then of three."""

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return (sample(index), index % 10, index) if index % 64 == 5 else (sample(index), index % 10)


class Plain(Samples):
    """Right by itself."""

    def __init__(self) -> None:
        self.table = table()

    def __getitem__(self, index: int) -> Tensor:
        return self.table[index].clone()


class Stream(IterableDataset[Tensor]):
    """Right by itself, without workers."""

    def __iter__(self) -> Iterator[Tensor]:
        return (sample(index) for index in range(COUNT))


def prefetch_without_workers() -> tuple[Plain, dict[str, Any]]:
    """`prefetch_factor` with `num_workers=0`."""
    return Plain(), {"batch_size": 8, "num_workers": 0, "prefetch_factor": 4}


def persistent_without_workers() -> tuple[Plain, dict[str, Any]]:
    """`persistent_workers` with `num_workers=0`."""
    return Plain(), {"batch_size": 8, "num_workers": 0, "persistent_workers": True}


def shuffle_and_sampler() -> tuple[Plain, dict[str, Any]]:
    """`shuffle` beside a sampler."""
    data = Plain()
    return data, {"batch_size": 8, "shuffle": True, "sampler": SequentialSampler(data)}


def shuffled_stream() -> tuple[Stream, dict[str, Any]]:
    """`shuffle` of an IterableDataset."""
    return Stream(), {"batch_size": 8, "shuffle": True}


def misspelt_option() -> tuple[Plain, dict[str, Any]]:
    """An option that DataLoader does not have."""
    return Plain(), {"batch_size": 8, "n_workers": 4}


def loader_refused() -> DataLoader[Any]:
    """The factory itself builds a loader that DataLoader refuses."""
    return DataLoader(Plain(), batch_size=8, num_workers=0, timeout=30, prefetch_factor=2)


class CorruptFile(Samples):
    """One file of many is cut short."""

    def __init__(self) -> None:
        self.files = scattered()
        self.files[211].write_bytes(b"cut")

    def __getitem__(self, index: int) -> Tensor:
        return torch.frombuffer(bytearray(self.files[index].read_bytes()), dtype=torch.float32)


class MissingFile(Samples):
    """The list names a file that is not there."""

    def __init__(self) -> None:
        self.files = scattered()
        self.files[77].unlink()

    def __getitem__(self, index: int) -> tuple[Tensor, str]:
        path = self.files[index]
        return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32), path.name


class LengthTooLong(Samples):
    """`len` counts the header line: the last index does not exist."""

    def __init__(self) -> None:
        self.rows = [sample(index) for index in range(COUNT - 1)]

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index].clone()


class LengthTooShort(Samples):
    """`len` is smaller than what can be read: the tail is never seen."""

    count = COUNT - 56

    def __init__(self) -> None:
        self.rows = [sample(index) for index in range(COUNT)]

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index].clone()


class StreamLengthLies(IterableDataset[Tensor]):
    """An IterableDataset that says 256 and gives 200."""

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[Tensor]:
        return (sample(index) for index in range(200))


def gives_nothing() -> None:
    """The factory forgets its return."""
    Plain()


def raises_in_factory() -> Plain:
    """The data are not where the factory looks."""
    raise FileNotFoundError("/data/imagenet/train: no such folder")
