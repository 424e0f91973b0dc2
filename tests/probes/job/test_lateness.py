"""Real gloo ranks: the one that is late is found by its own wait, and each tells its speed alone."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from ncclcheck.probes.facts import Lateness, Measurements
from tests.jobs.lateness_job import CASES, LATE, WORLD

ROOT = Path(__file__).parents[3]


@cache
def measured() -> list[dict[str, Measurements]]:
    """What each rank handed over, by case; the whole job runs once."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.jobs.lateness_job"]
        ranks = [
            subprocess.Popen([*command, str(rank), folder], stderr=subprocess.PIPE, cwd=ROOT)
            for rank in range(WORLD)
        ]
        try:
            errors = [rank.communicate(timeout=100)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0] * WORLD, b"\n".join(errors).decode()
        texts = [Path(folder, f"{rank}.json").read_bytes() for rank in range(WORLD)]
    return [msgspec.json.decode(text, type=dict[str, Measurements]) for text in texts]


def lateness(case: str) -> list[Lateness]:
    return [late for rank in measured() for late in rank[case].lateness]


@pytest.mark.parametrize("case", CASES)
def test_each_rank_tells_its_own(case: str) -> None:
    ranks = lateness(case)
    assert [(late.rank, late.node) for late in ranks] == [(0, "n0"), (1, "n0"), (2, "n1")]
    for late in ranks:
        assert late.iterations > 90
        assert 0 <= late.late_us.min <= late.late_us.p50 <= late.late_us.max
        assert late.wall_s > late.cpu_s > 0
        assert late.runqueue_s is not None
    assert sum(late.last for late in ranks) >= ranks[0].iterations


def test_a_rank_that_is_delayed_by_its_host_is_late_by_so_much() -> None:
    ranks = lateness("delayed")
    others = [late.late_us.p50 for late in ranks if late.rank != LATE]
    assert 20_000 <= ranks[LATE].late_us.p50 < 60_000
    assert max(others) < 5_000
    assert ranks[LATE].last > 0.9 * ranks[LATE].iterations


def test_a_rank_that_is_stopped_while_it_waits_is_late_as_well() -> None:
    ranks = lateness("stopped")
    others = [late for late in ranks if late.rank != LATE]
    assert ranks[LATE].late_us.mean > 2 * max(late.late_us.mean for late in others)
    assert ranks[LATE].stalled_s > 2 * max(late.stalled_s for late in others)


def test_each_rank_tells_its_speed_and_each_node_its_own() -> None:
    ranks = [speed for rank in measured() for speed in rank["speed"].rank_speeds]
    assert [(speed.rank, speed.node, speed.device, speed.reason) for speed in ranks] == [
        (0, "n0", "cpu", ""),
        (1, "n0", "cpu", ""),
        (2, "n1", "cpu", ""),
    ]
    for speed in ranks:
        assert speed.memory_gb_s
        assert speed.matmul_gflop_s
        assert (speed.to_device_gb_s, speed.from_device_gb_s) == (None, None)
        assert (speed.products > 0, speed.wrong_products) == (True, 0)
    assert len({speed.product_sum for speed in ranks}) == 1
    both, alone = (speed for rank in measured() for speed in rank["speed"].node_speeds)
    assert (both.node, both.ranks, both.reason) == ("n0", 2, "")
    assert both.busbw_gb_s
    assert (alone.node, alone.busbw_gb_s, alone.reason) == ("n1", None, "one rank on the node")
