"""Samples a second by number of workers: real loaders, the rule, and the lines of the report."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler

from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.rates import speed
from ncclcheck.probes.dataloader.rates.resources import cores as all_cores
from ncclcheck.probes.facts import Cluster, Measurements, Node, replace
from ncclcheck.probes.facts.data import DataReport, DataResources, Speed
from ncclcheck.probes.facts.data.made import Made as MadeFacts
from ncclcheck.probes.facts.data.report import Unseen
from ncclcheck.probes.facts.data.speed import Missed, Point, Slowest
from ncclcheck.probes.job.context import DataPlan
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.subjects.data import curve, dataset_text
from tests.helpers import stories


class Waits(Dataset[Any]):
    """Each sample waits, as for a slow file server: workers wait side by side, whatever else the machine does."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        time.sleep(1.0 if index == 999 and self.seconds < 0.01 else self.seconds)
        return torch.zeros(4)


class Short(IterableDataset[Any]):
    """Its end must not stop the clock, and worker_init_fn may set what it likes."""

    start = 0

    def __iter__(self) -> Any:
        return (torch.tensor(self.start + number) for number in range(50))


class Ends(Waits):
    def __getitem__(self, index: int) -> Any:
        os._exit(3)


def look(dataset: Any, cores: float = 2.0, limit: float = 8.0, **loader: Any) -> Speed:
    made = FactoryLoader(
        dataset, isinstance(dataset, IterableDataset), None if isinstance(dataset, Short) else 1000, loader
    )
    plan = DataPlan(factory="a:b", node="a", need=50.0)
    seen = speed.look(made, replace(plan, ranks_per_node=max(1, int(all_cores() / cores))), limit)
    assert msgspec.json.decode(msgspec.json.encode(seen), type=Speed) == seen
    return seen


def test_workers_wait_side_by_side() -> None:
    """One process cannot give more than 100 a second, two can."""
    seen = look(Waits(), num_workers=2, batch_size=4)
    rates = {point.workers: point.samples_s for point in curve.plain(seen)}
    assert sorted(rates) == sorted({0, 1, 2, int(seen.cores)})
    assert 50 < rates[0] <= 100
    assert 1.4 * rates[0] < rates[2] <= 200
    assert (seen.workers, seen.need, seen.start_method, seen.missed) == (2, 50.0, "fork", [])
    assert all(point.low <= point.samples_s <= point.high for point in seen.points)


def test_a_stream_is_begun_again() -> None:
    seen = look(Short(), batch_size=8, worker_init_fn=_sets)
    assert min(point.samples for point in seen.points) > 50
    assert seen.missed == []


def _sets(_: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.start = 7  # type: ignore[attr-defined]


def test_a_loader_that_asks_for_lists_of_indices() -> None:
    """Each is a batch, and counts for as many samples."""
    pairs = BatchSampler(SequentialSampler(range(1000)), 10, drop_last=True)
    seen = look(Waits(), batch_size=None, sampler=pairs)
    assert 500 < seen.points[0].samples_s <= 1000


def test_one_slow_sample_is_named() -> None:
    seen = look(Waits(0.0001), num_workers=0)
    assert seen.slowest is not None
    assert (seen.slowest.index, seen.slowest.seconds > 0.9) == (999, True)


def test_the_time_that_is_given_is_kept() -> None:
    begin = time.monotonic()
    seen = look(Waits(0.3), limit=3.0)
    assert time.monotonic() - begin < 6
    assert seen.missed


def test_a_process_that_ends_itself_gives_no_number() -> None:
    seen = look(Ends())
    assert (seen.points, seen.missed[0].why) == ([], "ended itself with exit status 3")
    assert verdict(seen).state is State.SKIPPED


def point(workers: int, samples_s: float, noise: float = 0.02, **more: Any) -> Point:
    low, high = samples_s * (1 - noise), samples_s * (1 + noise)
    given = {"prefetch": 2 if workers else 0, "samples": 100, "seconds": 1.0, "start_s": 0.1, **more}
    return Point(workers=workers, samples_s=samples_s, low=low, high=high, **given)


CURVE = [point(0, 100.0), point(1, 98.0), point(2, 195.0), point(4, 380.0)]
SEEN = Speed(points=CURVE, workers=1, prefetch=2, batch=4, distinct=64, cores=4.0, length=10**6)


def verdict(*seen: Speed | None) -> Verdict:
    cluster = Cluster(
        command="data",
        nodes=[Node(name="a")],
        measurements=Measurements(data=[DataReport(node="a", factory="a:b", speed=measured) for measured in seen]),
    )
    return judge(cluster, [rule for rule in all_rules() if rule.code == "DAT026"])[0]


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({"need": 90.0}, State.OK, "4 workers give 380 samples/s, 90 are needed"),
        ({"need": 385.0, "workers": 4}, State.OK, "4 workers give 380"),
        ({"need": 500.0}, State.WARN, "380 samples/s at most with 4 workers, 500 are needed"),
        ({"need": 150.0}, State.WARN, "1 worker gives 98 samples/s, 150 are needed; 2 workers give 195"),
        ({"need": 150.0, "workers": None}, State.OK, "4 workers"),
        ({}, State.NOTE, "4 workers give 380 samples/s, 3.9 times as many as the loader's 1 worker"),
        ({"workers": None}, State.OK, "by workers: 0: 100, 1: 98, 2: 195, 4: 380"),
        ({"workers": 4}, State.OK, "0: 100"),
        ({"workers": 1, "points": [point(1, 98.0, 0.5), point(2, 140.0, 0.5)]}, State.OK, "1: 98, 2: 140"),
        (
            {"workers": 4, "slowest": Slowest(index=7, seconds=1.5, median_s=0.01)},
            State.NOTE,
            "sample 7 takes 1.5 s",
        ),
        (
            {
                "workers": 4,
                "points": [*CURVE, point(4, 99.0, to_gpu=True), point(4, 200.0, to_gpu=True, pinned=True)],
            },
            State.NOTE,
            "pin_memory=True pays: 200 samples/s reach the GPU, 99 without",
        ),
    ],
)
def test_rule(changes: dict[str, Any], state: State, words: str) -> None:
    judged = verdict(replace(SEEN, **changes))
    assert judged.state is state
    assert any(words in finding.what for finding in judged.findings), [finding.what for finding in judged.findings]


NOTHING = replace(SEEN, points=[], missed=[Missed(workers=0, why="KeyError: 0")])


def test_nothing_was_measured() -> None:
    assert verdict(None).state is State.SKIPPED
    assert verdict(NOTHING).reason == "the speed could not be measured: KeyError: 0"
    assert verdict(NOTHING, SEEN).state is State.UNKNOWN


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({}, "DataLoader(..., num_workers=4)"),
        ({"length": 300}, "DataLoader(..., num_workers=4, persistent_workers=True)"),
        ({"length": 300, "persistent": True}, "DataLoader(..., num_workers=4)"),
        ({"points": [*CURVE, point(4, 600.0, prefetch=4)]}, "DataLoader(..., num_workers=4, prefetch_factor=4)"),
        ({"points": [*CURVE, point(4, 390.0, prefetch=4)]}, "DataLoader(..., num_workers=4)"),
    ],
)
def test_what_is_recommended(changes: dict[str, Any], command: str) -> None:
    """Only what was seen to give more."""
    judged = verdict(replace(SEEN, **changes))
    assert judged.findings[0].remedies[0].commands == [command]


def test_the_fewest_workers_that_nothing_beats() -> None:
    flat = [point(1, 100.0), point(2, 195.0), point(4, 200.0), point(8, 150.0)]
    assert curve.best(flat) == flat[1]
    assert curve.best([]) is None
    assert [curve.rate(value) for value in (0.5, 95.34, 999.7, 12345.0)] == ["0.5", "95.3", "1000", "12300"]


def test_lines_of_the_report() -> None:
    made = MadeFacts(dataset="Photos", length=1281167)
    reports = [
        DataReport(node="a1", factory="train:make", made=made, resources=DataResources(), speed=SEEN),
        DataReport(
            node="a2",
            factory="train:make",
            made=made,
            speed=replace(SEEN, points=[point(0, 50.0)]),
            unseen=[Unseen(aspect="resources", why="the time budget was used up")],
        ),
    ]
    empty = stories.document("healthy")
    document = replace(empty, measurements=Measurements(data=reports))
    assert dataset_text.text(document, 200).splitlines() == [
        "  dataset    train:make: Photos, 1 281 167 samples",
        "  samples/s  by workers 0: 50; warm, in batches of 4; this is a2, at best 380 on the fastest of 2 nodes",
        "  examined   memory, speed",
        "  not seen   memory on a2: the time budget was used up",
    ]
    assert dataset_text.text(empty, 80) == ""
