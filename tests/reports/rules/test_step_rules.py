"""TRN019 to TRN025: what the times of training steps say, raised, not raised, and with nothing to judge."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import Cluster, Job, Measurements, Node, Policy, Startup, Times, replace
from ncclcheck.probes.facts.training import (
    BatchNorms,
    Communication,
    DataParallels,
    FindUnused,
    LoaderWorkers,
    Phases,
    Setup,
    Side,
    Smoke,
    StepTimes,
    Timed,
    UnseenStep,
    WorkerStart,
)
from ncclcheck.reports.culprit import culprits
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.subjects.training import step_losses, step_times, steps_text
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options

OK, NOTE, WARN, FAIL, SKIPPED = State.OK, State.NOTE, State.WARN, State.FAIL, State.SKIPPED


def times(ms: float, spread: float = 0.0) -> Times:
    us = ms * 1000
    low, high = us * (1 - spread), us * (1 + spread)
    return Times(p50=us, p95=high, p99=high, min=low, max=high, mean=us, median_low=low, median_high=high)


def timed(core: float = 0.0, spread: float = 0.0, **parts: float) -> Timed:
    """Milliseconds of each part."""
    whole = sum(parts.values())
    return Timed(
        step_us=times(whole, spread),
        own_us=times(whole - core, spread),
        phases=Phases(**{name: ms * 1000 for name, ms in parts.items()}),
        core_us=core * 1000,
    )


def rank(number: int, full: Timed, twin: Timed, solo: Timed | None = None, device: str = "cpu") -> StepTimes:
    node = "ab"[number // 2 % 2]
    return StepTimes(rank=number, node=node, device=device, steps=20, samples=8, full=full, twin=twin, solo=solo)


STEP = {"data": 0.2, "forward": 5.0, "backward": 8.0, "optimizer": 2.8}
FULL = {**STEP, "backward": 14.0}


def ranks(count: int, device: str = "cpu", **last: Any) -> list[StepTimes]:
    """Alike but for the last one: `twin`, `solo` and `full` are parts that it has instead."""
    alike = [rank(n, timed(**FULL), timed(**STEP), timed(**STEP), device) for n in range(count - 1)]
    own = {kind: timed(**{**usual, **last.get(kind, {})}) for kind, usual in (("full", FULL), ("twin", STEP))}
    solo = timed(**{**STEP, **last.get("solo", {})})
    return [*alike, rank(count - 1, own["full"], own["twin"], solo, device)]


def cluster(
    steps: list[StepTimes], side: Side | None = None, model: str = "transformer", **limits: float
) -> Cluster:
    setup = Setup(model=model, data=model, strategy="ddp", precision="fp32", steps=20, batch=8)
    return Cluster(
        command="smoke",
        nodes=[Node(name="a"), Node(name="b")],
        job=Job(ranks=len(steps), nodes_asked=2, nodes_answered=2),
        measurements=Measurements(
            smoke=Smoke(setup=setup, steps=steps, side=side),
            startup_s=Startup(import_=2.0, rendezvous=1.0, init=0.1, first_collective=0.1),
        ),
        policy=Policy(thresholds={name.replace("_", "."): value for name, value in limits.items()}),
    )


def verdict(code: str, job: Cluster) -> Verdict:
    return judge(job, [rule for rule in all_rules() if rule.code == code])[0]


SLOW: dict[str, Any] = {"twin": {"backward": 58.0}, "solo": {"backward": 58.0}}
STARVED: dict[str, float] = {"core": 30.0, "backward": 38.0}


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        (ranks(2), OK),
        (ranks(4, **SLOW), FAIL),
        (ranks(2, twin={"backward": 17.0}, solo={"backward": 17.0}), WARN),
        (ranks(2, twin={"backward": 11.0}, solo={"backward": 11.0}), OK),
        (ranks(2, "cuda:0", twin={"backward": 11.0}, solo={"backward": 11.0}), WARN),
        (ranks(2, "cuda:0", twin={"backward": 12.5}, solo={"backward": 12.5}), FAIL),
        (ranks(4, twin={"backward": 58.0}), NOTE),
        (ranks(4, twin={"backward": 58.0, "spread": 0.9}, solo={"backward": 58.0}), OK),
        (ranks(4, twin=STARVED, solo=STARVED), NOTE),
        (ranks(4, "cuda:0", twin=STARVED, solo=STARVED), WARN),
        (ranks(1), SKIPPED),
        ([], SKIPPED),
    ],
)
def test_stragglers(steps: list[StepTimes], state: State) -> None:
    """Slow in both kinds of steps without collectives, by itself, and surely so."""
    assert verdict("TRN020", cluster(steps)).state is state


def lacking(device: str, **last: float) -> list[StepTimes]:
    """Two ranks that have no core for half of their steps; the last one has `last` instead."""
    usual = {**STEP, "core": 9.0}
    parts = [usual, {**usual, **last}]
    return [rank(n, timed(**FULL), timed(**own), timed(**own), device) for n, own in enumerate(parts)]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize(
    ("last", "state"),
    [
        ({}, OK),
        ({"backward": 28.0, "core": 20.0}, NOTE),  # 9 ms more of its own, and no core for 20 ms
        ({"backward": 58.0}, FAIL),  # 50 ms more, and no core for 9 ms
        ({"backward": 28.0, "core": 3.0}, FAIL),
    ],
)
def test_who_is_slow_where_all_lack_cores(device: str, last: dict[str, float], state: State) -> None:
    """A note where the lack explains it: then no rank is to blame."""
    job = cluster(lacking(device, **last))
    assert verdict("TRN020", job).state is state
    assert [culprit.names for culprit in culprits(job)] == ([["a/rank 1"]] if state is FAIL else [])


@pytest.mark.parametrize(
    ("device", "core", "state"), [("cpu", 20.0, NOTE), ("cpu", 3.0, FAIL), ("cuda:0", 20.0, FAIL)]
)
def test_who_alone_lacks_cores_on_a_machine_that_others_use(device: str, core: float, state: State) -> None:
    """18 ms more of its own: no straggler on CPUs where it had no core for 20 ms."""
    own = {**STEP, "backward": 46.0, "core": core}
    job = cluster(
        [rank(n, timed(**FULL), timed(**parts), timed(**parts), device) for n, parts in enumerate([STEP, own])]
    )
    assert verdict("TRN020", job).state is state
    assert bool(culprits(job)) is (state is FAIL)


@pytest.mark.parametrize(("core", "state"), [(0.0, FAIL), (2.0, NOTE)])
def test_who_was_not_timed_alone_on_shared_cores(core: float, state: State) -> None:
    """Where the model calls collectives itself no rank can be: it may only have lacked cores."""
    parts = [{**STEP, "core": core}, {**STEP, "backward": 38.0, "core": core}]
    job = cluster([rank(n, timed(**FULL), timed(**own)) for n, own in enumerate(parts)])
    assert verdict("TRN020", job).state is state
    assert bool(culprits(job)) is (state is FAIL)


def test_communication_that_is_not_hidden_where_all_lack_cores() -> None:
    judgement = verdict("TRN021", cluster(lacking("cuda:0"), sent(4.0)))
    assert judgement.state is NOTE
    assert "not judged, for the ranks wait for cores" in judgement.findings[0].what


def test_the_straggler_is_named_with_its_phase() -> None:
    findings = verdict("TRN020", cluster(ranks(4, **SLOW))).findings
    assert [(finding.where.node, finding.where.rank) for finding in findings] == [("b", 3)]
    assert (
        "66.00 ms a step, the others 16.00 ms (4.12 times), most of it lost in the backward pass"
        in findings[0].what
    )


def test_ranks_that_take_each_others_cores_are_no_stragglers() -> None:
    crowded = {**STEP, "backward": 60.0, "core": 52.0}
    steps = [rank(n, timed(**FULL), timed(**crowded), timed(**STEP)) for n in range(4)]
    judgement = verdict("TRN020", cluster(steps))
    assert [(finding.state, finding.where.node, finding.where.rank) for finding in judgement.findings] == [
        (NOTE, "a", None),
        (NOTE, "b", None),
    ]
    assert "16.00 ms alone, 68.00 ms together (0.24; 1 is expected)" in judgement.findings[0].what


def test_a_rank_that_only_waits_for_data_is_told_once() -> None:
    late = {"data": 50.0}
    steps = cluster(ranks(4, full=late, twin=late, solo=late))
    assert verdict("TRN020", steps).state is OK
    assert [(f.where.node, f.where.rank) for f in verdict("TRN019", steps).findings] == [("b", 3)]


@pytest.mark.parametrize(
    ("data", "limits", "state"),
    [
        (0.9, {}, OK),
        (1.9, {}, OK),
        (3.5, {}, WARN),
        (3.5, {"TRN019_percent": 50.0}, OK),
        (0.9, {"TRN019_ms": 0.1}, OK),
    ],
)
def test_waiting_for_data(data: float, limits: dict[str, Any], state: State) -> None:
    assert verdict("TRN019", cluster(ranks(2, "cuda:0", full={"data": data}), **limits)).state is state


@pytest.mark.parametrize(("data", "state"), [(1.9, OK), (3.5, NOTE), (50.0, WARN)])
def test_waiting_for_data_on_cpus(data: float, state: State) -> None:
    """No GPU is idle there; only a rank that waits far longer than the others is warned of."""
    judgement = verdict("TRN019", cluster(ranks(2, full={"data": data})))
    assert judgement.state is state
    assert not any("GPU is idle" in (finding.why or "") for finding in judgement.findings)


def test_all_ranks_on_cpus_wait_for_data() -> None:
    slow = {**FULL, "data": 50.0}
    steps = [rank(n, timed(**slow), timed(**STEP), timed(**STEP)) for n in range(2)]
    assert verdict("TRN019", cluster(steps)).state is NOTE


def sent(alone: float, *buckets: int) -> Side:
    return Side(communication=Communication(buckets=list(buckets or (1, 1, 1, 1)), alone_us=times(alone)))


@pytest.mark.parametrize(
    ("device", "side", "model", "state"),
    [
        ("cpu", sent(1.0), "transformer", OK),
        ("cuda:0", sent(24.0), "transformer", OK),
        ("cuda:0", sent(4.0), "transformer", WARN),
        ("cuda:0", sent(14.0), "transformer", OK),
        ("cuda:0", sent(14.0), "train:model", WARN),
        ("cuda:0", sent(6.0, 1), "train:model", WARN),
        ("cuda:0", sent(6.0, 1), "transformer", OK),
        ("cuda:0", None, "train:model", OK),
    ],
)
def test_communication(device: str, side: Side | None, model: str, state: State) -> None:
    """6 of 22 ms are not hidden; the backward pass has 8 ms."""
    assert verdict("TRN021", cluster(ranks(2, device), side, model)).state is state


BOTH: dict[str, Any] = {"with_us": times(16), "without_us": times(15)}
FORKED = WorkerStart(method="fork", seconds=30.0)
SPAWNED = WorkerStart(method="spawn", seconds=12.0)


@pytest.mark.parametrize(
    ("code", "side", "state"),
    [
        ("TRN022", Side(find_unused=FindUnused(asked=True, **BOTH)), WARN),
        ("TRN022", Side(find_unused=FindUnused(**BOTH)), OK),
        ("TRN022", Side(find_unused=FindUnused(asked=True, unused=["head.bias"], count=1)), SKIPPED),
        ("TRN022", Side(unseen=[UnseenStep(what="find_unused", why="the time was up")]), SKIPPED),
        ("TRN023", Side(batch_norms=BatchNorms(layers=2, names=["a", "b"], samples=4, off=0.3)), WARN),
        ("TRN023", Side(batch_norms=BatchNorms(layers=2, names=["a", "b"], samples=8)), OK),
        ("TRN023", Side(batch_norms=BatchNorms(layers=0, synced=2)), SKIPPED),
        ("TRN023", Side(batch_norms=BatchNorms(layers=2, names=["a", "b"])), SKIPPED),
        ("TRN024", Side(workers=LoaderWorkers(used="spawn", count=2, starts=[SPAWNED], pickled=1)), WARN),
        ("TRN024", Side(workers=LoaderWorkers(used="spawn", count=2, starts=[SPAWNED], pickled=2**31)), WARN),
        ("TRN024", Side(workers=LoaderWorkers(used="spawn", count=0, starts=[SPAWNED], pickled=1)), OK),
        ("TRN024", Side(workers=LoaderWorkers(used="fork", count=2, starts=[FORKED, SPAWNED], pickled=1)), OK),
        (
            "TRN024",
            Side(workers=LoaderWorkers(used="spawn", count=2, starts=[replace(SPAWNED, seconds=1.0, error="no")])),
            WARN,
        ),
        ("TRN024", Side(workers=LoaderWorkers(used="fork", count=2, error="TypeError: a lambda")), NOTE),
        ("TRN025", Side(data_parallel=DataParallels(wrapped=["model"])), WARN),
        ("TRN025", Side(data_parallel=DataParallels(gpus=8, ranks=1)), NOTE),
        ("TRN025", Side(data_parallel=DataParallels(gpus=8, ranks=8, one_us=9.0, all_us=12.0)), OK),
        ("TRN025", Side(data_parallel=DataParallels()), SKIPPED),
        *((code, None, SKIPPED) for code in ("TRN022", "TRN023", "TRN024", "TRN025")),
        *((code, Side(), SKIPPED) for code in ("TRN022", "TRN023", "TRN024", "TRN025")),
    ],
)
def test_beside_the_steps(code: str, side: Side | None, state: State) -> None:
    assert verdict(code, cluster(ranks(2), side)).state is state


def test_why_an_aspect_was_not_seen() -> None:
    side = Side(unseen=[UnseenStep(what="workers", why="the time was up")])
    assert verdict("TRN024", cluster(ranks(2), side)).reason == "the time was up"


HUNGRY: dict[str, Any] = {kind: {"data": 40.0} for kind in ("full", "twin", "solo")}
CROWDED = [rank(n, timed(**FULL, to_device=50.0), timed(**STEP, to_device=45.0), timed(**STEP)) for n in range(4)]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (
            ranks(2),
            "2 ranks train 1.45 times as fast as one alone (2 would be ideal): of each step of 22.00 ms, 6.00 ms",
        ),
        (ranks(4, full={"backward": 64.0}, **SLOW), "all wait for rank 3 on b, whose own work takes 66.00 ms"),
        (ranks(2, **HUNGRY), "rank 1 on a waits 40.00 ms of each step"),
        (
            CROWDED,
            "4 ranks together are slower than one alone (0.89 times its samples a second): the ranks of a take",
        ),
        (ranks(1), "One rank alone"),
    ],
)
def test_the_sentence(steps: list[StepTimes], words: str) -> None:
    """The largest loss, and no other."""
    job = cluster(steps)
    measured = step_times.steps(job)
    assert measured
    assert words in step_losses.sentence(job, measured)


def test_parts_add_up_to_the_step() -> None:
    """Own work, waiting and communication of each rank are its step."""
    measured = step_times.steps(cluster(ranks(4, **SLOW, full={"backward": 64.0})))
    assert measured
    for row in measured.rows:
        assert row.twin.step_us.p50 + row.wait + row.comm == pytest.approx(row.full.step_us.p50, abs=1.0)


def test_the_table_fits_and_names_slow_ranks_first_of_many() -> None:
    steps = [replace(step, node=f"gpu-node-with-a-long-name-{step.rank}") for step in ranks(40, **SLOW)]
    story = finish.Story(started="2026-01-01T00:00:00+00:00", seconds=1.0, signal=None)
    document = finish.make(cluster(steps, sent(1.0)), Options(command="smoke"), story)
    lines = steps_text.text(document, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:1] == ["39"] for line in lines)
    assert "  and 32 ranks whose own work takes less" in lines


def test_no_steps_no_text() -> None:
    story = finish.Story(started="2026-01-01T00:00:00+00:00", seconds=1.0, signal=None)
    assert steps_text.text(finish.make(cluster([]), Options(command="smoke"), story), 80) == ""


LATE: dict[str, Any] = {kind: {"data": 50.0} for kind in ("full", "twin", "solo")}


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        (ranks(4, **SLOW), [("b/rank 3", ["TRN020"])]),
        (ranks(4, **LATE), [("b/rank 3", ["TRN019"])]),
        (ranks(4), []),
        ([], []),
    ],
)
def test_who_is_to_blame(steps: list[StepTimes], named: list[tuple[str, list[str]]]) -> None:
    blamed = culprits(cluster(steps))
    assert [(culprit.names[0], culprit.explains) for culprit in blamed] == named
