"""Streams and samplers that can be read once, and such as begin anew; locks held while a sample is read."""

from __future__ import annotations

import fcntl
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ncclcheck.probes.dataloader.children import child
from ncclcheck.probes.dataloader.factory import FactoryLoader, made_by
from ncclcheck.probes.dataloader.ranks.orders import sample_orders
from ncclcheck.probes.dataloader.ranks.streams.streams_read import read_stream
from ncclcheck.probes.dataloader.rates.held import Locks
from ncclcheck.probes.dataloader.views import EmulatedRank, RankView
from ncclcheck.probes.facts import Cluster, Measurements, Node
from ncclcheck.probes.facts.data import DataReport, Sharding, Speed, Streams
from ncclcheck.probes.facts.data.sharding import Dry, EpochOrder, Share, Stream
from ncclcheck.probes.facts.data.speed import Held, Point
from ncclcheck.probes.job.context import DataPlan
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules


class Parsed(IterableDataset[Any]):
    """A generator that __init__ made."""

    def __init__(self, path: str, count: int = 60) -> None:
        self.rows = self.parse(path, count)

    @staticmethod
    def parse(path: str, count: int) -> Iterator[int]:
        yield from range(count if path else 0)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


class Counting(IterableDataset[Any]):
    """Its own iterator, which nobody sets back."""

    def __init__(self) -> None:
        self.position, self.length = 0, 60

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> int:
        if self.position == self.length:
            raise StopIteration
        self.position += 1
        return self.position


class SetBack(Counting):
    def __iter__(self) -> Counting:
        self.position = 0
        return self


class Reset(Counting):
    """As DALI's iterators: the loop calls it between epochs."""

    def reset(self) -> None:
        self.position = 0


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        number = 0
        while True:
            yield (number := number + 1)


class Continued(Endless):
    """One generator without an end."""

    def __init__(self) -> None:
        self.kept = super().__iter__()

    def __iter__(self) -> Iterator[int]:
        return self.kept


def dry(dataset: Any, seconds: float = 0.4) -> Dry | None:
    def work() -> RankView:
        view, plan = RankView(rank=0), DataPlan(factory="a:b", directory="")
        read_stream(
            FactoryLoader(dataset, True, None),
            EmulatedRank(plan=plan, rank=0, world=1, folder="", seconds=seconds),
            view,
        )
        return view

    ended = child.run(work, RankView, 30.0)
    assert ended.value is not None, ended.how
    return ended.value.dry


def test_a_stream_that_is_used_up_is_told_by_the_users_own_names() -> None:
    assert dry(Parsed("x")) == Dry(source="self.rows", function="parse", arguments=["path", "count"], method=True)
    assert dry(Counting()) == Dry(counters={"position": 0})


def test_an_iterable_dataset_that_is_its_own_iterator_is_a_dataset() -> None:
    assert made_by(lambda: DataLoader(SetBack()), {}, {}).iterable


def test_one_that_is_longer_than_a_reading_is_read_on() -> None:
    assert dry(Parsed("x", 20_000), seconds=0.05) is not None


@pytest.mark.parametrize("kind", [SetBack, Reset, Endless, Continued])
def test_one_that_begins_anew_or_never_ends_is_not_used_up(kind: Any) -> None:
    assert dry(kind(), seconds=0.05) is None


class Rows(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return range(40)[index]


@pytest.mark.parametrize("once", [True, False])
def test_batches_of_a_generator_come_once(tmp_path: Path, *, once: bool) -> None:
    batches = [[number, number + 1] for number in range(0, 40, 2)]
    given: Any = (batch for batch in batches) if once else batches
    view = RankView(rank=0)
    sample_orders(made_by(lambda: DataLoader(Rows(), batch_sampler=given), {}, {}), view, str(tmp_path), None)
    assert view.dry == (Dry(source="generator", function="<genexpr>", arguments=[".0"]) if once else None)


def verdict(code: str, **facts: Any) -> Verdict:
    report = DataReport(node="a", factory="f", **facts)
    cluster = Cluster(command="data", nodes=[Node(name="a")], measurements=Measurements(data=[report]))
    return judge(cluster, [rule for rule in all_rules() if rule.code == code])[0]


def of_stream(used_up: Dry | None, workers: int = 0, *, persistent: bool = False) -> Verdict:
    stream = Stream(items=[60], worker_items=[], ended=True, workers=workers, dry=used_up)
    sharding = Sharding(ranks=1, iterable=True, stream=stream)
    return verdict("DAT030", sharding=sharding, streams=Streams(asked=workers, persistent=persistent))


def test_a_second_epoch_without_a_sample_fails_where_the_loader_reads_it_there() -> None:
    used_up = Dry(source="self.rows", function="parse", arguments=["path"], method=True)
    (finding,) = of_stream(used_up).findings
    assert (finding.state, "self.rows is used up" in finding.what) == (State.FAIL, True)
    assert finding.remedies[0].commands[-1] == "    return self.parse(self.path)"
    assert of_stream(used_up, 2).state is State.NOTE
    assert of_stream(used_up, 2, persistent=True).state is State.FAIL
    assert of_stream(None).state is State.OK
    assert "    self.position = 0" in of_stream(Dry(counters={"position": 0})).findings[0].remedies[0].commands
    order = EpochOrder(samples=40, sequential=True, repeats=False, dry=Dry(source="generator"))
    assert verdict("DAT030", sharding=Sharding(ranks=1, order=order)).state is State.FAIL
    assert verdict("DAT030").state is State.SKIPPED


@pytest.mark.parametrize(
    ("length", "state"), [(500, State.NOTE), (380, State.OK), (760, State.OK), (None, State.OK)]
)
def test_a_stream_whose_len_is_that_of_nobody_is_noted(length: int | None, state: State) -> None:
    shares = [Share(rank=rank, length=length, samples=380, batches=38) for rank in (0, 1)]
    assert verdict("DAT018", sharding=Sharding(ranks=2, batch=10, iterable=True, shares=shares)).state is state


class Guarded(Rows):
    """A lock of multiprocessing around most of a read."""

    def __init__(self) -> None:
        self.lock = multiprocessing.Lock()

    def __getitem__(self, index: int) -> int:
        with self.lock:
            time.sleep(0.004)
        return index


class OnFile(Rows):
    def __init__(self, path: str) -> None:
        self.path = path

    def __getitem__(self, index: int) -> int:
        with open(self.path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(0.004)
            fcntl.flock(file, fcntl.LOCK_UN)
        return index


class Briefly(Guarded):
    def __getitem__(self, index: int) -> int:
        time.sleep(0.004)
        with self.lock:
            return index


def locks_of(dataset: Any) -> list[Held]:
    def work() -> list[Held]:
        locks, begun = Locks(dataset), time.perf_counter()
        with locks.watched():
            for index in range(8):
                dataset[index]
        return locks.share(time.perf_counter() - begun)

    ended = child.run(work, list[Held], 30.0)
    assert ended.value is not None, ended.how
    return ended.value


def test_the_share_of_a_read_that_a_lock_is_held(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    ((lock, share),) = [(wait.lock, wait.share) for wait in locks_of(Guarded())]
    assert (lock, share > 0.7) == ("self.lock", True)
    ((lock, share),) = [(wait.lock, wait.share) for wait in locks_of(OnFile(path))]
    assert (lock, share > 0.7) == (path, True)
    assert all(wait.share < 0.3 for wait in locks_of(Briefly()))


def test_a_lock_around_a_read_is_a_warning_where_it_costs_something() -> None:
    def states(share: float, each_s: float, workers: int) -> State:
        point = Point(workers=0, samples=1, seconds=1.0, samples_s=1.0, low=1.0, high=1.0)
        seen = Speed(points=[point], workers=workers, each_s=each_s, held=[Held(lock="self.lock", share=share)])
        return verdict("DAT031", speed=seen).state

    assert states(0.95, 0.01, 4) is State.WARN
    assert states(0.95, 0.01, 1) is State.NOTE
    assert states(0.95, 1e-5, 4) is State.NOTE
    assert states(0.3, 0.01, 4) is State.OK
    assert states(0.0, 0.0, 4) is State.SKIPPED
