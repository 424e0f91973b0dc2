"""What users name, what it gives, and how a sample and its generators are told apart."""

from __future__ import annotations

import queue
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from ncclcheck.probes.dataloader.children import child, surroundings
from ncclcheck.probes.dataloader.factory import FactoryLoader, resolve
from ncclcheck.probes.dataloader.indices import chosen
from ncclcheck.probes.dataloader.randomness import seeds
from ncclcheck.probes.dataloader.samples import fingerprint
from ncclcheck.probes.facts.data.content import Inherited
from ncclcheck.probes.facts.data.made import Made as MadeFacts
from ncclcheck.probes.job.context import DataPlan
from ncclcheck.reports.subjects.data.opened import opened_by_each

MODULE = """
import torch
from torch.utils.data import DataLoader, TensorDataset, DistributedSampler

data = TensorDataset(torch.arange(10))

class Module:
    def train_dataloader(self):
        return DataLoader(data, batch_size=5, shuffle=True)

def dataset(rank=0, size=10):
    return TensorDataset(torch.arange(size + rank))

def loader():
    return DataLoader(data, batch_size=2, num_workers=1, drop_last=True, shuffle=True)

def pair():
    return data, {"batch_size": 4}

def distributed():
    return DataLoader(data, sampler=DistributedSampler(data))

def iterator():
    return iter(data)
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "probes.py").write_text(MODULE)  # a name that ncclcheck has too
    return str(tmp_path)


def made(name: str, folder: str, env: dict[str, str] | None = None, **kwargs: Any) -> child.ChildEnd[list[Any]]:
    """What came of it, in a child: given, length, iterable, and the loader's keywords as text."""

    def work() -> list[Any]:
        loader = resolve(DataPlan(factory=name, kwargs=kwargs, directory=folder), env or {})()
        return [
            loader.given,
            loader.length,
            loader.iterable,
            {name: str(value) for name, value in loader.loader.items()},
        ]

    return child.run(work, list[Any], 30.0)


LOADER = {
    "num_workers": "1", "batch_size": "2", "drop_last": "True", "shuffle": "True",
    "persistent_workers": "False", "prefetch_factor": "2",
}  # fmt: skip


MODULE_LOADER = {"num_workers": "0", "batch_size": "5", "drop_last": "False", "shuffle": "True"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("probes:dataset", ["dataset", 10, False, {}]),
        ("probes.py:dataset", ["dataset", 10, False, {}]),
        ("probes:data", ["dataset", 10, False, {}]),
        ("probes:pair", ["tuple", 10, False, {"batch_size": "4"}]),
        ("probes:loader", ["loader", 10, False, LOADER]),
        (
            "probes:Module",
            [
                "module",
                10,
                False,
                {"num_workers": "0", "batch_size": "5", "drop_last": "False", "shuffle": "True"},
            ],
        ),
    ],
)
def test_what_a_factory_may_give(name: str, expected: list[Any], folder: str) -> None:
    assert made(name, folder).value == expected


def test_keywords_are_the_users_and_the_rank(folder: str) -> None:
    assert (made("probes:dataset", folder, size=7).value or [])[1] == 7
    assert (made("probes:dataset", folder, {"RANK": "3"}).value or [])[1] == 13


def test_a_factory_that_asks_for_its_rank_is_a_world_of_one(folder: str) -> None:
    given, length, _, loader = made("probes:distributed", folder).value or []
    assert (given, length) == ("loader", 10)
    assert "DistributedSampler" in loader["sampler"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("probes", "is not MODULE:NAME"),
        ("nowhere:dataset", "nowhere cannot be imported"),
        ("nowhere.py:dataset", "is not there"),
        ("probes:nothing", "probes has no nothing"),
        ("probes:iterator", "can be read only once"),
    ],
)
def test_what_cannot_be_examined_says_why(name: str, error: str, folder: str) -> None:
    assert error in made(name, folder).error


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (4, 2)),
        ({"num_workers": 0}, (4, 0)),
        ({"batch_sampler": BatchSampler(SequentialSampler(range(10)), 5, False)}, (None, 2)),
        ({"batch_size": None}, (None, 2)),
    ],
)
def test_a_change_replaces_what_it_excludes(changes: dict[str, Any], expected: tuple[int | None, int]) -> None:
    factory = FactoryLoader(
        list(range(10)), False, 10, {"batch_size": 4, "shuffle": True, "num_workers": 2, "prefetch_factor": 3}
    )
    loader: DataLoader[Any] = factory.make_loader(**changes)
    assert (loader.batch_size, loader.num_workers) == expected
    assert loader.prefetch_factor == (3 if loader.num_workers else None)


class _Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def test_indices_hold_the_ends_and_are_the_same_every_time() -> None:
    loader = FactoryLoader(None, False, 1000)
    indices = chosen(loader, 16, seed=11)
    assert indices[:3] == [0, 500, 999]
    assert len(set(indices)) == 16
    assert indices == chosen(loader, 16, seed=11)
    assert chosen(FactoryLoader(None, False, 3), 16, seed=11) == [0, 1, 2]
    assert chosen(FactoryLoader(_Stream(), True, None), 4, seed=11) == [0, 1, 2, 3]


def test_leaves_of_a_sample() -> None:
    whole = torch.arange(100.0)
    sample = {"image": whole[2:4], "meta": {"id": 7, "name": "a"}, "ids": [1, 2, 3], "pair": (np.ones(2), None)}
    leaves = fingerprint.leaves(sample)
    assert set(leaves) == {"image", "meta.id", "meta.name", "ids", "pair.0", "pair.1"}
    image = leaves["image"]
    assert (image.dtype, image.shape, image.brief) == ("float32", (2,), "2, 3")
    assert (image.bytes, image.storage) == (8, 400)
    assert fingerprint.leaves(whole)[""].digest == fingerprint.leaves(whole.clone())[""].digest
    assert fingerprint.leaves(whole)[""].digest != fingerprint.leaves(whole + 1)[""].digest


def test_an_address_is_not_content() -> None:
    assert fingerprint.leaves(object()) == fingerprint.leaves(object())


class _Holder:
    shared = np.random.default_rng(0)

    def __init__(self) -> None:
        self.rng = random.Random(0)
        self.transforms = [torch.Generator()]
        self.draw = lambda: OURS.random() + 1


OURS = np.random.RandomState(0)


def test_private_generators_are_found_wherever_they_are() -> None:
    generators = seeds.private(_Holder())
    assert set(generators) == {"self.rng", "self.transforms[0]", "_Holder.shared", f"{__name__}.OURS"}


def test_global_generators_are_not_private() -> None:
    assert seeds.private([random.seed, torch.default_generator, np.random.mtrand._rand]) == {}


@pytest.mark.parametrize("generator", [random.Random(1), torch.Generator(), np.random.default_rng(1), OURS])
def test_a_generator_is_put_back(generator: Any) -> None:
    state, before = seeds.state_of(generator), seeds.digest_of(generator)
    seeds.advance(generator, 3)
    assert seeds.digest_of(generator) != before
    seeds.restore(generator, state)
    assert seeds.digest_of(generator) == before


def test_reseeding_settles_all_global_generators() -> None:
    seeds.reseed(11, 3)
    first = seeds.states()
    seeds.reseed(11, 4)
    assert all(seeds.states()[name] != first[name] for name in ("python", "numpy", "torch"))
    seeds.reseed(11, 3)
    assert seeds.states() == first


class Reads:
    """In a thread of its own."""

    def __init__(self) -> None:
        self.asked: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._serve, name="Thread-1 (_serve)", daemon=True).start()

    def _serve(self) -> None:
        self.asked.get()


class Holds(list[int]):
    """What starts the thread is held by the dataset."""

    def __init__(self) -> None:
        super().__init__(range(4))
        self.reader = Reads()


def test_the_object_whose_method_a_thread_runs_is_known_by_its_path() -> None:
    before = surroundings.read()
    dataset = Holds()
    changes = surroundings.compare(
        before, surroundings.read(), FactoryLoader(dataset, iterable=False, length=4), 0.1
    )
    dataset.reader.asked.put(None)
    assert changes.thread_owners == ["self.reader"]


def test_a_container_of_pyav_is_a_handle_that_workers_open_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a class of the name that PyAV gives its own."""

    class InputContainer:
        pass

    module = ModuleType("av.container")
    module.InputContainer = InputContainer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "av.container", module)

    class Videos:
        def __init__(self) -> None:
            self.containers = [InputContainer(), InputContainer()]

    now = surroundings.read()
    made = FactoryLoader(dataset=Videos(), loader={}, given="dataset", length=2, iterable=False)
    changes = surroundings.compare(now, now, made, 0.0)
    assert {(library.path.replace("self[0]", "self"), library.type) for library in changes.libraries} == {
        (f"self.containers[{number}]", "av.container.InputContainer") for number in (0, 1)
    }
    inherited = Inherited(path="self.containers[0]", how="library", what="av.container.InputContainer")
    fix = opened_by_each(MadeFacts(dataset="train.Videos"), inherited)
    assert "    self.containers = [av.open(path) for path in PATHS]" in fix.commands
