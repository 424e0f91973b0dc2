"""What samples and workers take: real children that read real datasets, and the rules about what they saw."""

from __future__ import annotations

import functools
import multiprocessing
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from ncclcheck.probes.dataloader.children import footprint
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.rates import resources
from ncclcheck.probes.facts import Cluster, Limits, Measurements, Node, Policy, Unread, replace
from ncclcheck.probes.facts.data import DataReport, DataResources
from ncclcheck.probes.facts.guard.unread import known
from ncclcheck.probes.job.context import DataPlan
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules

MIB, GIB = 2**20, 2**30
RECORDS = 300_000  # twice what DAT021 warns of


def opened() -> Any:
    return Path("/proc/self/status").open()  # nobody closes it


class Plain(Dataset[Any]):
    """Clean: one tensor of all samples."""

    def __init__(self, length: int = 20_000) -> None:
        self.data = torch.randn(length, 64, generator=torch.Generator().manual_seed(0))
        self.kept: list[Any] = []
        self.by_index: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


class LeavesOpen(Plain):
    def __getitem__(self, index: int) -> Any:
        self.kept.append(opened())
        return self.data[index]


class OpenByIndex(Plain):
    def __getitem__(self, index: int) -> Any:
        if index not in self.by_index:
            self.by_index[index] = opened()
        return self.data[index]


class OpenOnce(Plain):
    def __getitem__(self, index: int) -> Any:
        if not self.kept:
            self.kept.append(opened())
        return self.data[index]


class Leaks(Plain):
    def __getitem__(self, index: int) -> Any:
        self.kept.append(torch.zeros(10_000) + 1)
        return self.data[index]


class Caches(Plain):
    def __getitem__(self, index: int) -> Any:
        if index not in self.by_index:
            self.by_index[index] = torch.zeros(10_000) + 1
        return self.by_index[index]


class Records(Plain):
    """A list of dicts: reading writes into every one of them."""

    def __init__(self) -> None:
        super().__init__(1)
        self.records = [{"path": f"/data/{number:09d}.jpg", "label": number} for number in range(RECORDS)]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        record = self.records[index]
        return record["path"], record["label"]


class Packed(Records):
    """The same, as the remedy of DAT021 says."""

    def __init__(self) -> None:
        super().__init__()
        packed = [pickle.dumps(item) for item in self.records]
        self.ends = torch.tensor([0] + [len(text) for text in packed]).cumsum(0)
        self.data = torch.frombuffer(bytearray(b"".join(packed)), dtype=torch.uint8)
        self.records = []

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> Any:
        part: Any = self.data[self.ends[index] : self.ends[index + 1]].numpy()
        item = pickle.loads(part)
        return item["path"], item["label"]


class Raises(Plain):
    def __getitem__(self, index: int) -> Any:
        raise KeyError(index)


class Numbers(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return (torch.randn(64) for _ in range(5000))


class KeepsFrames(Plain):
    def __getitem__(self, index: int) -> Any:
        self.kept.append(torch.full((16_384,), float(index)))
        return self.data[index]


class Locked(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.epoch = multiprocessing.Value("i", 0)


class WithLambda(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.transform = SimpleNamespace(scale=lambda tensor: tensor * 2)


def look(dataset: Any, **loader: Any) -> DataResources:
    length = len(dataset) if isinstance(dataset, Plain) else None
    made = FactoryLoader(dataset, isinstance(dataset, IterableDataset), length, loader)
    return resources.look(made, DataPlan(factory="a:b", node="a"), 6.0)


def verdict(code: str, seen: DataResources | None, **thresholds: float) -> Verdict:
    cluster = Cluster(
        command="data",
        nodes=[Node(name="a")],
        measurements=Measurements(data=[DataReport(node="a", factory="a:b", resources=seen)]),
        policy=Policy(thresholds={name.replace("_", "."): value for name, value in thresholds.items()}),
    )
    return judge(cluster, [rule for rule in all_rules() if rule.code == code])[0]


CODES = [f"DAT02{number}" for number in range(6)]


def states(seen: DataResources) -> dict[str, str]:
    return {code: state.value for code in CODES if (state := verdict(code, seen).state) is not State.OK}


def look_at(dataset: Callable[[], Any], loader: dict[str, Any]) -> DataResources:
    return look(dataset(), **loader)


def forget() -> None:
    multiprocessing.set_start_method(None, force=True)


@pytest.fixture(scope="module")
def small() -> Iterator[ProcessPoolExecutor]:
    """A process of its own: that of the tests is large, full of freed memory, and copies by itself, too.

    It forgets how it was started: loaders would take it for their user's wish.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), forget) as pool:
        yield pool


@pytest.mark.parametrize(
    ("dataset", "loader", "expected"),
    [
        (Plain, {}, {}),
        (Plain, {"num_workers": 2, "batch_size": 64}, {}),
        (OpenOnce, {}, {}),
        (Leaks, {}, {"DAT021": "warn"}),
        (Caches, {}, {"DAT021": "note"}),
        (Records, {}, {"DAT021": "warn"}),
        (Records, {"num_workers": 0}, {}),
        (Packed, {}, {}),
        (Numbers, {}, {}),
        (Locked, {}, {}),
        (WithLambda, {}, {"DAT024": "note"}),
        (WithLambda, {"num_workers": 1, "multiprocessing_context": "spawn"}, {"DAT024": "fail"}),
        (Plain, {"num_workers": 2, "batch_size": 8, "collate_fn": list}, {"DAT022": "warn"}),
        (Plain, {"num_workers": 2, "batch_size": None}, {"DAT022": "warn"}),
    ],
)
def test_real_datasets(
    small: ProcessPoolExecutor, dataset: Callable[[], Any], loader: dict[str, Any], expected: dict[str, str]
) -> None:
    """What is wrong with each, and nothing else."""
    seen = small.submit(look_at, dataset, loader).result(timeout=60)
    assert states(seen) == expected
    assert msgspec.json.decode(msgspec.json.encode(seen), type=DataResources) == seen


def test_open_descriptors_are_counted() -> None:
    again = known(look(LeavesOpen()).again)
    assert again.descriptors == again.reads
    assert again.opened[-1].endswith("/status")
    assert verdict("DAT020", look(LeavesOpen())).state is State.FAIL


def test_a_descriptor_for_each_sample() -> None:
    """It ends at the limit: it matters only where there are more samples than descriptors."""
    seen = look(OpenByIndex())
    assert known(seen.again).descriptors == 0
    assert known(seen.fresh).descriptors >= known(seen.fresh).reads - 4  # some were read before, by chance
    for soft, state in ((1024, State.FAIL), (30_000, State.WARN), (2**20, State.OK), (-1, State.OK)):
        assert verdict("DAT020", replace(seen, nofile=Limits(soft=soft, hard=-1))).state is state


def test_copies_are_worked_out_from_what_was_read() -> None:
    """Within half and twice of what the list really holds."""
    seen = look(Records())
    fresh = known(seen.fresh)
    container = seen.containers[0]
    assert (container.path, container.kind, container.items) == ("records", "list of dict", RECORDS)
    assert 0.5 < sorted(fresh.copied)[4] * 8 / fresh.reads * RECORDS / container.bytes < 2.5
    assert any("self.records" in c for r in verdict("DAT021", seen).findings[0].remedies for c in r.commands)


def test_a_cache_of_all_samples_must_fit() -> None:
    seen = look(Caches())
    assert verdict("DAT021", replace(seen, memory=64 * GIB)).state is State.NOTE
    assert verdict("DAT021", replace(seen, memory=GIB)).state is State.WARN


def test_samples_that_cannot_be_read_are_for_others_to_tell() -> None:
    seen = look(Raises())
    assert isinstance(seen.again, Unread)
    assert "KeyError: 1" in seen.again.why or "KeyError: 0" in seen.again.why
    assert verdict("DAT020", seen).state is State.SKIPPED
    assert verdict("DAT024", seen).state is State.OK


def test_the_smallest_part_that_cannot_be_pickled() -> None:
    pickled = known(look(WithLambda(), worker_init_fn=functools.partial(print, "x")).start).pickled
    assert [(pickled.what, pickled.attribute) for pickled in pickled] == [
        ("dataset", "transform.scale"),
        ("worker_init_fn", ""),
    ]
    assert [bool(pickled.error) for pickled in pickled] == [True, False]


def test_memory_is_looked_at_briefly_where_there_was_no_time_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine on which the whole look takes longer than it may."""
    measure = footprint.measure

    def slow(made: FactoryLoader, seed: int, seconds: float, *, briefly: bool = False) -> footprint.Footprint:
        time.sleep(0.0 if briefly else 60.0)
        return measure(made, seed, seconds, briefly=briefly)

    monkeypatch.setattr(footprint, "measure", slow)
    monkeypatch.setattr(resources, "_BRIEFLY_S", 60.0)
    dataset = KeepsFrames()
    seen = resources.look(FactoryLoader(dataset, False, len(dataset), {}), DataPlan(factory="a:b", node="a"), 1.0)
    assert isinstance(seen.fresh, Unread)
    judged = verdict("DAT021", seen)
    assert judged.state is State.WARN, judged
    assert "self.kept" in str(judged.findings[0].evidence)
