"""Whether samples stack: real children that read and collate, and the rule about what they saw."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from ncclcheck.probes.dataloader.factory import _take_apart
from ncclcheck.probes.dataloader.samples import structure
from ncclcheck.probes.dataloader.samples.signatures import signature
from ncclcheck.probes.facts import Cluster, Measurements, Node
from ncclcheck.probes.facts.data import DataReport, Structure
from ncclcheck.probes.job.context import DataPlan
from ncclcheck.reports.judgement.findings import Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.samples.streamed_sets import Of, StreamOf, pad

ROW = torch.zeros(3)
FOUR: dict[str, Any] = {"batch_size": 4}


def look(given: Any, limit: float = 10.0) -> Structure:
    return structure.look(_take_apart(given), DataPlan(factory="a:b"), limit)


def verdict(seen: Structure) -> Verdict:
    report = DataReport(node="a", factory="a:b", structure=seen)
    cluster = Cluster(command="data", nodes=[Node(name="a")], measurements=Measurements(data=[report]))
    return judge(cluster, [rule for rule in all_rules() if rule.code == "DAT014"])[0]


def crash(index: int) -> Any:
    return ctypes.string_at(0) if index == 123 else ROW


def hang(index: int) -> Any:
    return time.sleep(600) if index == 123 else ROW


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "alike": (lambda: Of(lambda i: (ROW, i)), "ok"),
    "one longer": (lambda: Of(lambda i: torch.zeros(4 if i == 96 else 3)), "fail"),
    "one of other dtype": (lambda: Of(lambda i: ROW.double() if i == 96 else ROW), "warn"),
    "int or float": (lambda: Of(lambda i: (ROW, i if i % 3 else 0.5)), "warn"),
    "one None": (lambda: Of(lambda i: None if i == 77 else ROW), "fail"),
    "one more key": (lambda: Of(lambda i: {"a": 1} if i % 50 else {"a": 1, "b": 2}), "fail"),
    "array or tensor": (lambda: Of(lambda i: numpy.zeros(3) if i % 3 else ROW), "warn"),
    "1-D and 2-D, loader known": (lambda: (Of(lambda i: ROW if i % 2 else ROW[None]), {"batch_size": 4}), "fail"),
    "lengths, loader not known": (lambda: Of(lambda i: torch.zeros(i % 7 + 1)), "warn"),
    "batches, the last smaller": (
        lambda: Of(lambda i: (torch.zeros(9 if i < 199 else 4, 3), torch.zeros(9 if i < 199 else 4))),
        "note",
    ),
    "one part, the last shorter": (lambda: Of(lambda i: torch.zeros(9 if i < 199 else 4)), "fail"),
    "lengths, shuffled": (lambda: DataLoader(Of(lambda i: torch.zeros(i % 7 + 1)), shuffle=True, **FOUR), "fail"),
    "lengths that are padded": (
        lambda: DataLoader(Of(lambda i: torch.zeros(i % 7 + 1)), shuffle=True, collate_fn=pad, **FOUR),
        "ok",
    ),
    "lengths, one a batch": (lambda: DataLoader(Of(lambda i: torch.zeros(i % 7 + 1)), batch_size=1), "ok"),
    "lengths, not batched": (lambda: DataLoader(Of(lambda i: torch.zeros(i % 7 + 1)), batch_size=None), "ok"),
    "sorted by length": (lambda: DataLoader(Of(lambda i: torch.zeros(i // 4 + 1)), **FOUR), "ok"),
    "sorted, not at the batch": (lambda: DataLoader(Of(lambda i: torch.zeros(i // 6 + 1)), **FOUR), "fail"),
    "batches by length": (
        lambda: DataLoader(
            Of(lambda i: torch.zeros(i % 2 + 1)), batch_sampler=[[k, k + 2, k + 4] for k in range(0, 190, 3)]
        ),
        "ok",
    ),
    "an object": (lambda: DataLoader(Of(lambda _: (ROW, object())), **FOUR), "fail"),
    "a stream": (lambda: (StreamOf(lambda _: ROW), {"batch_size": 4}), "ok"),
    "a stream with one longer": (
        lambda: (StreamOf(lambda i: torch.zeros(4 if i == 50 else 3)), {"batch_size": 4}),
        "fail",
    ),
}


@pytest.mark.parametrize(("given", "state"), CASES.values(), ids=CASES.keys())
def test_samples(given: Callable[[], Any], state: str) -> None:
    assert verdict(look(given())).state.value == state


def test_who_differs_is_named() -> None:
    seen = look(Of(lambda i: (torch.zeros(4 if i == 96 else 3), i)))
    assert [(m.leaf, m.kind, m.indices, m.count) for m in seen.mixed] == [("0", "shape", [96], 1)]
    assert seen.unstacked[0].indices == [0, 96]
    assert "96" in verdict(seen).findings[0].what


def test_a_sample_that_ends_the_process() -> None:
    """The others are read nevertheless."""
    seen = look(Of(crash))
    assert [(stop.kind, stop.index, stop.signal) for stop in seen.died] == [("crashed", "123", "SIGSEGV")]
    assert seen.died[0].place.endswith("in crash")
    assert seen.read == 199


def test_a_sample_that_never_comes() -> None:
    seen = look(Of(hang), 3.0)
    assert [(stop.kind, stop.index, stop.busy) for stop in seen.died] == [("hung", "123", False)]
    assert seen.died[0].usual is not None


def test_samples_that_raise_are_counted() -> None:
    seen = look(Of(lambda i: [ROW][i % 2]))
    assert (seen.read, seen.raised) == (100, 100)


def test_signatures() -> None:
    sample = {"image": ROW, "boxes": [1, 2], "meta": {"id": "a"}}
    assert [f"{path}: {look}" for path, look in signature(sample)] == [
        "image: float32 [3]", "boxes: list of 2", "meta.id: str",
    ]  # fmt: skip


class Refilled:
    """A collate function that keeps its tensor. copies: it gives a copy of it, as the printed fix does."""

    def __init__(self, *, copies: bool) -> None:
        self.kept, self.copies = torch.empty(8, 3), copies

    def __call__(self, samples: list[Any]) -> Any:
        for row, (sample, _) in zip(self.kept, samples, strict=False):
            row.copy_(sample)
        batch = torch.stack([image for image, _ in samples]) if self.copies else self.kept[: len(samples)]
        return batch, torch.tensor([label for _, label in samples])


@pytest.mark.parametrize("copies", [False, True])
def test_a_batch_that_the_next_one_overwrites_is_found(copies: bool) -> None:
    rows = Of(lambda i: (torch.full((3,), float(i)), i))
    seen = look(DataLoader(rows, collate_fn=Refilled(copies=copies), num_workers=2, **FOUR))
    assert (seen.overwritten, seen.unpaired) == ([] if copies else ["0"], None)
