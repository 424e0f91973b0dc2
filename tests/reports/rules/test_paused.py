"""A node whose processes are paused from outside, or that a debugger holds: who does it, as far as it shows."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from ncclcheck.probes.facts import Cluster, Lateness, Measurements, RankUse, Resources, Times
from ncclcheck.probes.job.peers import lateness
from ncclcheck.reports.subjects.failures.limits.crowded import own_limits

LATE = Times(p50=1.0, p95=1.0, p99=1.0, min=1.0, max=1.0, mean=1.0)
RANK = RankUse(pid=102, cpu_s=1, memory=1, tasks=1)


def _cluster(stalled: float, elsewhere: float = 0.1, continued: int = 0, **had: Any) -> Cluster:
    late = [
        Lateness(
            rank=n, node="abc"[n], iterations=9, last=3, late_us=LATE, wall_s=10, cpu_s=1, runqueue_s=0.5,
            stalled_s=stalled if n == 1 else elsewhere, continued=continued if n == 1 else 0,
        )
        for n in range(3)
    ]  # fmt: skip
    used = [
        Resources(node=name, seconds=10, **({"ranks": [RANK]} | (had if name == "b" else {}))) for name in "abc"
    ]
    return Cluster(measurements=Measurements(lateness=late, resources=used))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"freezer": "/snapshot"}, "by the freezer of its control group (/snapshot)"),
        ({}, "or with the whole virtual machine; it has no CPU quota"),
        ({"throttled": 0.0}, "no CPU quota was used up"),
        ({"continued": 12}, "SIGSTOP, SIGCONT"),
        ({"stolen": 0.4}, "its hypervisor gave 40 % of its cores' time"),
        ({"throttled": 0.9}, "had used up its quota"),
        ({"ranks": [RankUse(pid=7, cpu_s=1, memory=1, tasks=1, traced_by="gdb (pid 9)")]}, "attached to it: gdb"),
    ],
)
def test_who_pauses_it(facts: dict[str, Any], words: str) -> None:
    exhausted = own_limits(_cluster(4.0, **facts), "b")
    assert exhausted is not None
    assert words in exhausted.words
    assert exhausted.fix


@pytest.mark.parametrize(("stalled", "elsewhere"), [(1.0, 0.1), (0.5, 0.0), (4.0, 3.0)])
def test_what_is_no_pause(stalled: float, elsewhere: float) -> None:
    assert own_limits(_cluster(stalled, elsewhere), "b") is None


def test_a_process_counts_how_often_it_was_let_go_on() -> None:
    counter = lateness._Continued()
    os.kill(os.getpid(), signal.SIGCONT)
    counter.stop()
    os.kill(os.getpid(), signal.SIGCONT)
    assert counter.times == 1
