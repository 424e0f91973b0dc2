"""Real gloo ranks measure groups of nodes without a world, also while one of them comes too late."""

from __future__ import annotations

import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from ncclcheck.probes.facts import GroupTime
from tests.jobs.groups_job import LATE, ROUNDS, WORLD

ROOT = Path(__file__).parents[3]


@cache
def group_times() -> dict[tuple[int, str], GroupTime]:
    """What the ranks handed over, by round and first node; nothing twice."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.jobs.groups_job"]
        ranks = [
            subprocess.Popen([*command, str(rank), port, folder], stderr=subprocess.PIPE, cwd=ROOT)
            for rank in range(WORLD)
        ]
        try:
            errors = [rank.communicate(timeout=120)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0] * WORLD, b"\n".join(errors).decode()
        texts = [Path(folder, f"{rank}.json").read_bytes() for rank in range(WORLD)]
    times = [time for text in texts for time in msgspec.json.decode(text, type=list[GroupTime])]
    assert len(times) == sum(map(len, ROUNDS))
    return {(time.round, time.nodes[0]): time for time in times}


def test_groups_of_a_round_run_at_the_same_time() -> None:
    for first in ("n0", "n2"):
        time = group_times()[0, first]
        assert (time.state, time.ranks, time.bytes) == ("ok", 2, 2**17)
        assert time.busbw_gb_s


def test_a_rank_that_comes_too_late_costs_its_group_alone() -> None:
    (time,) = (group_time for (number, _), group_time in group_times().items() if number == 1)
    assert f"n{LATE}" in ROUNDS[1][0]
    assert (time.ranks, time.busbw_gb_s) == (3, None)
    assert time.state in ("timed_out", "failed")  # which of gloo's two limits ends first
    assert time.reason


def test_the_next_round_is_measured_all_the_same() -> None:
    assert group_times()[2, "n0"].state == "ok"
    assert group_times()[2, "n0"].nodes == ["n0", "n1", "n2", "n3"]
