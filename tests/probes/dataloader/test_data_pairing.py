"""Batches of own collate functions: rows of two samples are found, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from ncclcheck.probes.dataloader.samples.pairing import unpaired

Sample = tuple[Tensor, int]
Collate = Callable[[list[Any]], Any]


def samples(count: int = 6) -> list[Sample]:
    """Sequences of different lengths with a label of their own."""
    drawn = torch.Generator().manual_seed(1)
    return [(torch.rand(3 + (5 * n) % 7, generator=drawn), n % 4) for n in range(count)]


def images(count: int = 6) -> list[dict[str, Any]]:
    drawn = torch.Generator().manual_seed(2)
    return [{"image": torch.rand(3, 8, 8, generator=drawn), "label": n, "name": f"{n}.png"} for n in range(count)]


def sorted_inputs(batch: list[Sample]) -> Any:
    """Sorted for packing; the labels stay where they were."""
    inputs = sorted((tensor for tensor, _ in batch), key=len, reverse=True)
    return pad_sequence(inputs, batch_first=True), torch.tensor([label for _, label in batch])


def sorted_without_lengths(batch: list[Sample]) -> Any:
    lengths = torch.tensor([len(tensor) for tensor, _ in batch])
    batch = sorted(batch, key=lambda sample: len(sample[0]), reverse=True)
    return pad_sequence([tensor for tensor, _ in batch]), lengths, torch.tensor([label for _, label in batch])


def labels_of_the_next(batch: list[dict[str, Any]]) -> Any:
    collated = default_collate(batch)
    return {**collated, "label": collated["label"].roll(1)}


def label_of_the_first(batch: list[dict[str, Any]]) -> Any:
    return torch.stack([sample["image"] for sample in batch]), torch.full((len(batch),), batch[0]["label"])


def shuffled_apart(batch: list[dict[str, Any]]) -> Any:
    order = torch.tensor([2, 0, 1, 5, 3, 4])
    return {
        "x": torch.stack([sample["image"] for sample in batch])[order],
        "names": [sample["name"] for sample in batch],
    }


def sorted_together(batch: list[Sample]) -> Any:
    batch = sorted(batch, key=lambda sample: len(sample[0]), reverse=True)
    lengths = torch.tensor([len(tensor) for tensor, _ in batch])
    return pad_sequence([tensor for tensor, _ in batch]), lengths, torch.tensor([label for _, label in batch])


def padded_on_the_left(batch: list[Sample]) -> Any:
    most = max(len(tensor) for tensor, _ in batch)
    rows = [torch.nn.functional.pad(tensor, (most - len(tensor), 0)) for tensor, _ in batch]
    return torch.stack(rows).half(), torch.tensor([label for _, label in batch])


def mixed_up(batch: list[dict[str, Any]]) -> Any:
    collated = default_collate(batch)
    order = torch.tensor([2, 0, 1, 5, 3, 4])
    return (
        0.7 * collated["image"] + 0.3 * collated["image"][order],
        collated["label"],
        collated["label"][order],
        0.7,
    )


def negatives(batch: list[dict[str, Any]]) -> Any:
    collated = default_collate(batch)
    return {"anchor": collated["image"], "negative": collated["image"].roll(1, 0), "label": collated["label"]}


def one_hot(batch: list[dict[str, Any]]) -> Any:
    labels = torch.nn.functional.one_hot(torch.tensor([sample["label"] for sample in batch]))
    return torch.stack([sample["image"] for sample in batch]) * 2 - 1, labels


def as_lists(batch: list[dict[str, Any]]) -> Any:
    return tuple(
        zip(*[(sample["image"], {"labels": torch.tensor([sample["label"]])}) for sample in batch], strict=True)
    )


def language(batch: list[Sample]) -> Any:
    ids = pad_sequence([tensor for tensor, _ in batch], batch_first=True)
    labels = pad_sequence([tensor for tensor, _ in batch], batch_first=True, padding_value=-100.0)
    return {"input_ids": ids, "labels": labels, "attention_mask": ids.ne(0)}


@pytest.mark.parametrize(
    ("collate", "given", "parts"),
    [
        (sorted_inputs, samples(), {"0", "1"}),
        (sorted_without_lengths, samples(), {"the length of 0", "0"}),
        (labels_of_the_next, images(), {"image", "label"}),
        (label_of_the_first, images(), {"image", "label"}),
        (shuffled_apart, images(), {"image", "name"}),
    ],
    ids=lambda collate: getattr(collate, "__name__", ""),
)
def test_rows_of_two_samples_are_named(collate: Collate, given: list[Any], parts: set[str]) -> None:
    indices = [10 * n for n in range(len(given))]
    pair = unpaired(collate(given), given, indices)
    assert pair is not None
    assert {pair.first, pair.second} == parts
    assert pair.first_of != pair.second_of
    assert {pair.first_of, pair.second_of} <= {*indices}


@pytest.mark.parametrize("collate", [default_collate, mixed_up, negatives, one_hot, as_lists])
def test_sound_batches_of_images_pass(collate: Collate) -> None:
    assert unpaired(collate(images()), images(), range(6)) is None


@pytest.mark.parametrize("collate", [sorted_together, padded_on_the_left, language])
def test_sound_batches_of_sequences_pass(collate: Collate) -> None:
    assert unpaired(collate(samples()), samples(), range(6)) is None


class Odd:
    """Compares with nothing."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("batch", [None, [], [Odd()] * 6, {"x": [Odd()] * 6}, torch.ones(6), "text"])
def test_batches_of_anything_are_survived(batch: Any) -> None:
    assert unpaired(batch, samples(), range(6)) is None
