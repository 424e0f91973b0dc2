"""Ranks of one node that are traced, or have less priority than those of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclcheck.probes.facts import Job, Lateness, Measurements, RankState, RankUse, Resources
from ncclcheck.probes.job.timing import summary
from ncclcheck.probes.job.usage import resources
from ncclcheck.probes.machine.access import Machine
from ncclcheck.reports.judgement.findings import Finding
from tests.helpers.clusters import node, verdict


def _told(of_all: dict[str, Any], of_b: dict[str, Any], late: bool = False) -> list[Finding]:
    used = [
        Resources(node=name, seconds=9, ranks=[RankUse(pid=7, cpu_s=1, memory=1, tasks=1, **more)])
        for name, more in (("a", of_all), ("b", of_all | of_b), ("c", of_all))
    ]
    lateness = [
        Lateness(rank=n, node="abc"[n], iterations=9, last=9 if n == 1 else 0, wall_s=9, cpu_s=1, runqueue_s=0.0,
                 late_us=summary([0.5 if late and n == 1 else 0.0] * 9))
        for n in range(3)
    ]  # fmt: skip
    measured = Measurements(resources=used, lateness=lateness)
    nodes = [node(name) for name in "abc"]
    judgement = verdict("BEN021", *nodes, command="bench", job=Job(nodes_asked=3), measurements=measured)
    return [finding for finding in judgement.findings if finding.state.value != "ok"]


@pytest.mark.parametrize(
    ("of_b", "words"),
    [
        ({"policy": "idle"}, "it runs only where nobody else wants the core (SCHED_IDLE)"),
        ({"nice": 10}, "it runs with nice 10, the others with 0"),
        ({"traced_by": "strace (pid 9)"}, "a debugger or tracer is attached to it: strace (pid 9)"),
    ],
)
def test_one_node_alone(of_b: dict[str, Any], words: str) -> None:
    (finding,) = _told({}, of_b)
    assert (finding.state.value, finding.where.node) == ("warn", "b")
    assert words in finding.what
    assert finding.remedies
    assert _told({}, of_b, late=True) == []  # BEN003 says it


@pytest.mark.parametrize("of_all", [{}, {"nice": 5}, {"policy": "idle"}, {"policy": "batch"}])
def test_what_all_have_is_somebodys_will(of_all: dict[str, Any]) -> None:
    assert _told(of_all, {}) == []


@pytest.mark.parametrize(("looks", "traced"), [("tt", True), ("St", False), ("SS", False), ("tSt", True)])
def test_a_tracer_that_has_no_number_here(tmp_path: Path, looks: str, traced: bool) -> None:
    """Its own pid namespace sees no TracerPid, and threads that stand in state t."""
    watch = resources.ResourceWatch(Machine(), tmp_path)
    for state in looks:
        for folder in (tmp_path / "7", tmp_path / "7/task/7", tmp_path / "7/task/8"):
            folder.mkdir(parents=True, exist_ok=True)
            letter = state if folder.name == "8" else "S"
            (folder / "stat").write_text(
                f"7 (python) {letter} 1 1 1 0 -1 0 0 0 0 0 5 0 0 0 20 0 7 0 1 0 100" + " 0" * 18
            )
        watch.look([RankState(rank=0, node="a", phase="world", pid=7)])
    (use,) = watch.seen("a").ranks
    assert bool(use.traced_by) is traced
