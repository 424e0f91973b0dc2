"""Who made a job slow: since when, by how much, and nobody where nobody stands out."""

from __future__ import annotations

from msgspec.structs import replace

from ncclcheck.probes.facts import Box, BoxProcess, BoxSample, Cluster, Measurements
from ncclcheck.reports.subjects.box import pace

T = 1_795_000_000.0


def _job(sent: list[float], alone: int, since: int) -> Cluster:
    """A look a second. alone: the rank that waits for nobody since then, while the others wait."""
    ranks = [
        BoxProcess(
            pid=10 + rank, rank=rank, role="rank", command="python", born=T, gone=T + len(sent), status=0,
            apart=[0.5 if n < since else float(rank == alone) for n in range(len(sent))],
            cores=[0.1] * len(sent),
        )
        for rank in range(3)
    ]  # fmt: skip
    samples = [BoxSample(t=T + n + 0.5, sent=rate) for n, rate in enumerate(sent)]
    box = Box(host="h1", folder="b", started=T, ended=T + len(sent), status=0, processes=ranks, samples=samples)
    return Cluster(command="watch", measurements=Measurements(boxes=[box]))


def _of_ranks(noise: float) -> Cluster:
    """What its ranks write is a quarter from the 40th second on, whatever other jobs send over the wires."""
    cluster = _job([noise * (1 + n % 7) for n in range(90)], 1, 40)
    [box] = cluster.measurements.boxes
    wrote = [0.0] * 15 + [900.0] * 25 + [220.0] * 50
    wrote[30] = 90_000.0  # a checkpoint
    ranks = [replace(rank, wrote=[value * (1 + rank.rank) for value in wrote]) for rank in box.processes]
    return Cluster(command="watch", measurements=Measurements(boxes=[replace(box, processes=ranks)]))


def test_the_pace_of_ranks_is_known_on_a_node_with_other_jobs() -> None:
    slow = pace.slow(_of_ranks(5000.0))
    assert slow is not None
    assert slow.process is not None
    assert (slow.process.rank, round(slow.ratio)) == (1, 4)
    assert abs(slow.t - (T + 40)) <= 3


def test_a_rank_that_alone_writes_less_is_no_slow_job() -> None:
    cluster = _of_ranks(5000.0)
    [box] = cluster.measurements.boxes
    steady = [replace(rank, wrote=[900.0] * 90) if rank.rank == 0 else rank for rank in box.processes]
    assert pace.slow(Cluster(measurements=Measurements(boxes=[replace(box, processes=steady)]))) is None


def _slow(before: int, after: int, rate: float, alone: int = 2) -> pace.SlowSince | None:
    start = [0.0, 0.0, 300.0, *[0.0] * 17]  # one burst while it imports
    return pace.slow(_job([*start, *[500.0] * before, *[rate] * after], alone, 20 + before))


def test_the_rank_that_waits_for_nobody_holds_up_the_job() -> None:
    slow = _slow(before=12, after=40, rate=60.0)
    assert slow is not None
    assert slow.process is not None
    assert (slow.process.rank, round(slow.ratio)) == (2, 8)
    assert abs(slow.t - (T + 32)) <= 2
    assert slow.what.startswith("it waits for no other process in 100%")


def test_nothing_is_said_of_a_pace_that_was_not_known_or_kept_or_of_nobody() -> None:
    assert _slow(before=4, after=40, rate=60.0) is None
    assert _slow(before=12, after=8, rate=60.0) is None
    assert _slow(before=12, after=40, rate=450.0) is None
    assert _slow(before=12, after=40, rate=60.0, alone=9) is None
