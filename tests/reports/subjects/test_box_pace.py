"""Who made a job slow: since when, by how much, and nobody where nobody stands out."""

from __future__ import annotations

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


def _slow(before: int, after: int, rate: float, alone: int = 2) -> pace.Slow | None:
    start = [0.0, 0.0, 300.0, *[0.0] * 17]  # one burst while it imports
    return pace.slow(_job([*start, *[500.0] * before, *[rate] * after], alone, 20 + before))


def test_the_rank_that_waits_for_nobody_holds_up_the_job() -> None:
    found = _slow(before=12, after=40, rate=60.0)
    assert found is not None
    assert found.process is not None
    assert (found.process.rank, round(found.ratio)) == (2, 8)
    assert abs(found.t - (T + 32)) <= 2
    assert found.what.startswith("it waits for no other process in 100%")


def test_nothing_is_said_of_a_pace_that_was_not_known_or_kept_or_of_nobody() -> None:
    assert _slow(before=4, after=40, rate=60.0) is None
    assert _slow(before=12, after=8, rate=60.0) is None
    assert _slow(before=12, after=40, rate=450.0) is None
    assert _slow(before=12, after=40, rate=60.0, alone=9) is None
