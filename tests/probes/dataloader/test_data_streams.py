"""What a real DataLoader shows of streams, epochs and workers: real children and workers, no mocks."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from ncclcheck.probes.dataloader.factory import FactoryLoader, _take_apart
from ncclcheck.probes.dataloader.randomness import depends, streams
from ncclcheck.probes.facts import Cluster, Measurements, Node, Unread
from ncclcheck.probes.facts.data import DataReport, Streams
from ncclcheck.probes.job.context import DataPlan
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.samples import streamed_sets as sets

CODES = ("DAT003", "DAT009", "DAT010", "DAT013", "DAT015")
TWO: dict[str, Any] = {"num_workers": 2, "batch_size": 4}
KEPT = {**TWO, "persistent_workers": True}


def look(given: Any) -> Streams:
    made: FactoryLoader = _take_apart(given)
    return streams.look(made, DataPlan(factory="a:b"), 12.0)


def bad(seen: Streams) -> dict[str, str]:
    """What the rules fail or warn about."""
    report = DataReport(node="a", factory="a:b", streams=seen)
    cluster = Cluster(command="data", nodes=[Node(name="a")], measurements=Measurements(data=[report]))
    verdicts = judge(cluster, [rule for rule in all_rules() if rule.code in CODES])
    return {v.code: v.state.value for v in verdicts if v.state.value in ("fail", "warn", "unknown")}


CLEAN: dict[str, Callable[[], Any]] = {
    "a table": sets.Rows,
    "torch's generator": sets.Noise,
    "python's generator": lambda: (sets.Flip(), TWO),
    "a generator that is not used": lambda: (sets.OwnNoiseUnused(), TWO),
    "a generator made in the worker": lambda: (sets.OwnNoiseLater(), TWO),
    "a generator given to the worker": lambda: (sets.OwnNoise(), {**TWO, "worker_init_fn": sets.give_generator}),
    "a collate function that mixes": lambda: (sets.Rows(), {**TWO, "collate_fn": sets.Mixup()}),
    "a generator by index": lambda: (sets.ByIndex(), TWO),
    "a state that is restored": lambda: (sets.Restores(), TWO),
    "a cache below the augmentation": lambda: (sets.CachedAndAugmented(), KEPT),
    "a constant seed of what is not used": lambda: (sets.Flip(), {**TWO, "worker_init_fn": sets.seed_by_constant}),
    "a loader with a seed": lambda: DataLoader(sets.Noise(), generator=torch.Generator().manual_seed(0), **TWO),
    "seeds by worker that live on": lambda: (sets.Noise(), {**KEPT, "worker_init_fn": sets.seed_by_id}),
    "an order that all workers share": lambda: (sets.Shuffled(), TWO),
    "a shared epoch": lambda: (sets.EpochsShared(), KEPT),
    "a loader that tells the epoch": lambda: sets.TellingLoader(sets.EpochsShared(), **KEPT),
    "an epoch, and workers that end": lambda: (sets.Epochs(), TWO),
    "an error that needs no worker": lambda: (sets.Broken(), TWO),
}


@pytest.mark.parametrize("given", CLEAN.values(), ids=CLEAN.keys())
def test_legitimate_randomness(given: Callable[[], Any]) -> None:
    assert bad(look(given())) == {}


DEFECTS: dict[str, tuple[Callable[[], Any], dict[str, str]]] = {
    "a generator of its own": (sets.OwnNoise, {"DAT009": "fail", "DAT010": "fail"}),
    "the same, without workers": (
        lambda: (sets.OwnNoise(), {"num_workers": 0, "batch_size": 4}),
        {"DAT009": "warn", "DAT010": "warn"},
    ),
    "the same, spawned": (
        lambda: (sets.OwnNoise(), {**TWO, "multiprocessing_context": "spawn"}),
        {"DAT009": "fail", "DAT010": "fail"},
    ),
    "a stream with a generator": (lambda: (sets.Endless(), TWO), {"DAT009": "fail", "DAT010": "fail"}),
    "a constant": (
        lambda: (sets.Noise(), {**TWO, "worker_init_fn": sets.seed_by_constant}),
        {"DAT009": "fail", "DAT010": "fail"},
    ),
    "the worker's id": (lambda: (sets.Noise(), {**TWO, "worker_init_fn": sets.seed_by_id}), {"DAT010": "fail"}),
    "a collate function that draws": (
        lambda: (sets.Noise(), {**TWO, "collate_fn": sets.mix, "worker_init_fn": sets.seed_by_id}),
        {"DAT010": "fail"},
    ),
    "a generator that is reset": (
        lambda: sets.ResettingLoader(sets.Noise(), generator=torch.Generator(), **TWO),
        {"DAT010": "fail"},
    ),
    "seeds the global generator": (sets.Seeds, {"DAT010": "fail"}),
    "seeds it by index": (sets.SeedsByIndex, {"DAT010": "warn"}),
    "a cache of what was drawn": (sets.Frozen, {"DAT010": "fail"}),
    "an epoch that workers miss": (lambda: (sets.Epochs(), KEPT), {"DAT013": "fail"}),
    "the same in a Subset": (lambda: (Subset(sets.Epochs(), range(48)), KEPT), {"DAT013": "fail"}),
    "a generator made anew for each sample": (sets.BeginsAnew, {"DAT010": "warn"}),
    "the same of torch's": (sets.TensorsAnew, {"DAT010": "warn"}),
    "a collate function that begins anew": (
        lambda: (sets.Rows(), {**TWO, "collate_fn": sets.Mixup(3)}),
        {"DAT010": "warn"},
    ),
    "prefetch without workers": (lambda: (sets.Rows(), {"prefetch_factor": 2}), {"DAT015": "fail"}),
    "not one batch": (lambda: (sets.Rows(), {"batch_size": 128, "drop_last": True}), {"DAT015": "fail"}),
}


@pytest.mark.parametrize(("given", "expected"), DEFECTS.values(), ids=DEFECTS.keys())
def test_defects(given: Callable[[], Any], expected: dict[str, str]) -> None:
    assert bad(look(given())) == expected


@pytest.mark.parametrize(
    ("dataset", "kind", "place"),
    [
        (sets.Crashes, "crashed", "in act"),
        (sets.Leaves, "left", ""),
        (sets.Hangs, "hung", "in act"),
        (sets.Forks, "raised", "in act"),
    ],
)
def test_how_a_worker_ends(dataset: Callable[[], Any], kind: str, place: str) -> None:
    """With the worker, the sample and the user's own line."""
    seen = look((dataset(), TWO))
    assert [(stop.kind, stop.worker, stop.index) for stop in seen.stops] == [(kind, 1, "5")]
    assert seen.stops[0].place.endswith(place)
    assert not seen.stops[0].alone
    assert bad(seen) == {"DAT003": "fail"}


def test_a_lock_that_is_held_at_the_fork() -> None:
    seen = streams.look(_take_apart(sets.Locked()), DataPlan(factory="a:b"), 4.0)
    assert [(stop.kind, stop.alone) for stop in seen.stops] == [("hung", True)]
    assert seen.stops[0].place.endswith("in __getitem__")
    assert bad(seen) == {"DAT003": "fail"}


def test_a_batch_that_cannot_be_sent() -> None:
    lambdas = sets.Of(lambda index: (sets.ROWS[0], lambda: index))
    seen = look((lambdas, {**TWO, "collate_fn": sets.columns}))
    assert [(stop.kind, stop.during) for stop in seen.stops] == [("hung", "queue")]
    assert "pickle" in seen.stops[0].error


def test_what_is_told_of_a_shared_stream() -> None:
    seen = look(sets.OwnNoise())
    assert isinstance(seen.shared, list)
    assert isinstance(seen.depends, list)
    assert [(shared.generator, shared.workers) for shared in seen.shared] == [("self.rng", [0, 1])]
    assert len(set(seen.depends[0].values)) == 2


def test_what_is_only_iterated_needs_no_loader() -> None:
    class Bare:
        def __iter__(self) -> Any:
            return iter(range(3))

    seen = look(Bare())
    assert isinstance(seen.shared, Unread)
    assert "IterableDataset" in seen.shared.why
    assert bad(seen) == {}


class Transform:
    """A transform with generators of its own, as in albumentations 2.0.8."""

    def __init__(self, p: float) -> None:
        self.p, self.py_random, self.noise = p, random.Random(0), np.random.default_rng(0)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image + self.noise.normal() if self.py_random.random() < self.p else image


class Composed(Dataset[Any]):
    """Of ten transforms the last one is applied, to some samples."""

    def __init__(self) -> None:
        self.transforms = [*(Transform(0.0) for _ in range(9)), Transform(0.3)]

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> torch.Tensor:
        return functools.reduce(
            lambda image, transform: transform(image), self.transforms, torch.full((4,), float(index))
        )


def test_of_many_generators_those_that_matter_are_found() -> None:
    answer = depends.look(FactoryLoader(Composed(), False, 96), 11, 2, 60.0)
    names = [depend.generator for depend in answer.depends]
    assert names == ["self.transforms[9].py_random", "self.transforms[9].noise"]


def test_where_the_time_is_over_those_that_reading_draws_from_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr(depends, "time", SimpleNamespace(monotonic=lambda: next(hours)))
    answer = depends.look(FactoryLoader(Composed(), False, 96), 11, 2, 60.0)
    assert [depend.generator for depend in answer.depends] == [f"self.transforms[{n}].py_random" for n in range(6)]
