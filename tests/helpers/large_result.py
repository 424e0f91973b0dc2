"""A made-up result of many nodes, in which everything was measured and much is wrong."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import (
    Expected,
    JobMemory,
    Measurements,
    Node,
    PairTime,
    RankMemory,
    RankState,
    Run,
    Times,
    replace,
)
from ncclcheck.probes.facts.data import DataReport, Speed
from ncclcheck.probes.facts.data.speed import Point
from ncclcheck.probes.facts.training import Smoke
from ncclcheck.probes.facts.training.steps import Phases, StepTimes, Timed
from ncclcheck.reports.judgement.findings import Finding, State, Where, fail, seen, you
from ncclcheck.reports.judgement.jsondoc import Document, NodeEntry
from tests.helpers import stories
from tests.helpers.results import row

RANKS_A_NODE = 8


def large(nodes: int, *, name: str = "gpu-{}") -> Document:
    """A healthy story's node again and again, each with a finding of its own. name: has a place for a number."""
    healthy = stories.document("healthy")
    names = [name.format(f"{number:04d}") for number in range(nodes)]
    verdict = replace(healthy.verdicts[0], state=State.FAIL, findings=[*_findings(names)])
    return replace(
        healthy,
        state="fail",
        nodes=[
            NodeEntry(name=node_name, facts=_node(healthy.nodes[0].facts, node_name, at))
            for at, node_name in enumerate(names)
        ],
        verdicts=[verdict, *healthy.verdicts[1:]],
        run=Run(ranks=[RankState(rank=at, node=node_name) for at, node_name in enumerate(names)]),
        measurements=_measured(names),
    )


def _node(pattern: Node, name: str, number: int) -> Node:
    host = replace(pattern.host, kernel=f"6.8.0-{number % 40}", memory=2**40 + number)
    return replace(pattern, name=name, host=host)


def _findings(names: list[str]) -> Iterator[Finding]:
    for number, name in enumerate(names):
        yield fail(
            Where(node=name, device=f"mlx5_{number % 8}"),
            f"its port {number} is DOWN on {name}",
            why=f"Rank {number} has no rail of its own." * (1 + number % 3),
            owner="node",
            evidence=[seen(f"/sys/class/infiniband/mlx5_{number % 8}/ports/1/state", f"1: DOWN {number}")],
            fix=[you(f"Leave {name} out.", f"#SBATCH --exclude={name}")],
        )


def _measured(names: list[str]) -> Measurements:
    ranks = [(rank, names[rank // RANKS_A_NODE]) for rank in range(len(names) * RANKS_A_NODE)]
    sizes = [8 * 4**step for step in range(14)]
    expected = Expected(low=300.0, high=390.0, basis="8 x 400 Gb/s a node")
    rows = [
        row(
            30 + size / 2e5, op=op, size=size, algbw_gb_s=size / 1e6, busbw_gb_s=size / 6e5, expected_gb_s=expected
        )
        for op in ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
        for size in sizes
    ]
    return Measurements(
        collectives=rows,
        pairs=[*_pairs(names)],
        memory=JobMemory(ranks=[_memory(rank, node) for rank, node in ranks]),
        smoke=Smoke(steps=[_steps(rank, node) for rank, node in ranks]),
        data=[_dataset(node, number) for number, node in enumerate(names)],
    )


def _pairs(names: list[str]) -> Iterator[PairTime]:
    """Ten rounds; node 7 sends slowly to all, and the exchange of the first two nodes fails in the first round."""
    for turn in range(10):
        for number, a in enumerate(names):
            b = names[(number + turn + 1) % len(names)]
            broken = turn == number == 0
            speed = None if broken else 5.0 if number == 7 else 45 + number % 5
            state = "timed_out" if broken else "ok"
            yield PairTime(a=a, b=b, bytes=2**22, round=turn, a_to_b_gb_s=speed, b_to_a_gb_s=46.0, state=state)  # type: ignore[arg-type]


def _memory(rank: int, node: str) -> RankMemory:
    peak = 2**34 + 2**24 * (rank % 16) + 2**35 * (rank == 3)
    return RankMemory(
        rank=rank, node=node, device="cuda:0", by="nvml", after_init=2**31, peak=peak, total=80 * 2**30
    )


def _steps(rank: int, node: str) -> StepTimes:
    slower = 1.0 + 0.5 * (rank == 5) + rank % 7 / 100
    parts = Phases(data=200, to_device=300, forward=9000 * slower, backward=16000, optimizer=2000)
    twin = Timed(step_us=_times(25000 * slower), own_us=_times(25000 * slower), phases=parts)
    full = Timed(step_us=_times(42000), own_us=_times(42000), phases=replace(parts, backward=25000))
    return StepTimes(rank=rank, node=node, device="cuda:0", steps=20, samples=32, full=full, twin=twin)


def _times(us: float) -> Times:
    return Times(p50=us, p95=us, p99=us, min=us, max=us, mean=us, median_low=us, median_high=us)


def _dataset(node: str, number: int) -> DataReport:
    rates = [(workers, (workers + 1) * (90 + number % 30)) for workers in range(5)]
    points = [
        Point(workers=workers, samples=1000, seconds=3.0, samples_s=rate, low=rate * 0.9, high=rate * 1.1)
        for workers, rate in rates
    ]
    return DataReport(node=node, factory="train:dataset", speed=Speed(points=points, need=400.0, cores=4))
