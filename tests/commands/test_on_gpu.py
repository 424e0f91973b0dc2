"""Two nodes on one GPU with real NCCL, through the real command. And, without one, how GPUs are given out."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ncclcheck.base.endpoint import free_port
from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Collective, Connections, Gpus, Node, Transport
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.run.plan import bench_plan
from ncclcheck.run.plan.bench_plan import BenchOptions, JobShape
from tests.conftest import Command, environment

NCCL = BenchOptions(backend="nccl")
BARE = Path(__file__).resolve().parents[1] / "jobs/bare_loop.py"


def _nodes(count: int, gpus: int) -> list[Node]:
    return [Node(name=f"sim{index}", gpus=Gpus(usable=gpus)) for index in range(count)]


@pytest.mark.parametrize(
    ("nodes", "gpus", "ranks", "shared"), [(2, 8, 4, False), (2, 2, 1, False), (2, 1, 1, True), (5, 2, 1, True)]
)
def test_simulated_nodes_share_gpus_where_nccl_is_asked_for(
    nodes: int, gpus: int, ranks: int, shared: bool
) -> None:
    shape = bench_plan.shape(NCCL, _nodes(nodes, gpus), simulated=True)
    assert (shape.backend, shape.ranks_per_node) == ("nccl", ranks)
    assert ("share" in shape.note and "of one card" in shape.note) is shared


@pytest.mark.parametrize(
    ("shape", "visible", "expected"),
    [
        (JobShape("nccl", 1), ["0"], [["0"], ["0"]]),
        (JobShape("nccl", 1), ["GPU-a", "GPU-b"], [["GPU-a"], ["GPU-b"], ["GPU-a"]]),
        (JobShape("nccl", 2), ["4", "5", "6", "7"], [["4", "5"], ["6", "7"]]),
    ],
)
def test_every_node_is_given_its_gpus(shape: JobShape, visible: list[str], expected: list[list[str]]) -> None:
    assert [bench_plan.gpus_of(index, shape, visible) for index in range(len(expected))] == expected


def test_real_nodes_and_several_ranks_share_nothing() -> None:
    with pytest.raises(UsageError, match="not every node has a GPU"):
        bench_plan.shape(NCCL, _nodes(2, 0), simulated=True)
    with pytest.raises(UsageError, match="2 nodes that share 1 GPU have one rank each"):
        bench_plan.shape(BenchOptions(backend="nccl", nproc_per_node=2), _nodes(2, 1), simulated=True)
    assert bench_plan.shape(BenchOptions(), _nodes(2, 1), simulated=True).backend == "gloo"
    assert bench_plan.shape(NCCL, _nodes(2, 1), simulated=False) == JobShape("nccl", 1)


def _bare(backend: str, size: int, iterations: int) -> float:
    """Microseconds by the loop beside us, each of its two ranks a machine of its own to NCCL."""
    port = str(free_port("127.0.0.1"))
    ranks = [
        subprocess.Popen(
            [sys.executable, str(BARE), backend, str(size), str(iterations)],
            stdout=subprocess.PIPE,
            env=environment(
                RANK=str(rank),
                WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                NCCL_HOSTID=f"bare-{port}-{rank}",
                CUDA_VISIBLE_DEVICES="0",
                OMP_NUM_THREADS="1",
                **({"GLOO_SOCKET_IFNAME": "lo"} if backend == "gloo" else {}),
            ),
        )
        for rank in (0, 1)
    ]
    try:
        return float(ranks[0].communicate(timeout=120)[0])
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(10)


def test_the_bare_loop_gives_a_figure() -> None:
    assert 0 < _bare("gloo", 4096, 3) < 10e6


def _failed(document: Document) -> list[str]:
    return [v.code for v in document.verdicts if v.state is State.FAIL and v.code.startswith(("RUN", "BEN001"))]


def _kinds(connections: list[Connections]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for connection in connections:
        counted[connection.kind] += connection.count
    return counted


def _agrees(transport: Transport, log: str) -> None:
    """What the facts say of a rank is what its log says, by a few patterns of our own."""
    assert isinstance(transport.version, str)
    assert isinstance(transport.connections, list)
    vias = re.findall(r"\] via (\w+/\w+)(?:\S*(/GDRDMA))?", log)
    assert _kinds(transport.connections) == Counter(map("".join, vias))
    assert transport.completed == len(set(re.findall(r"comm (0x[0-9a-f]+) .* - Init COMPLETE", log)))
    versions = re.findall(r"NCCL version ([0-9.]+)", log)  # one rank of a communicator prints it
    assert not versions or transport.version.startswith(versions[0])
    (used,) = {*re.findall(r"Bootstrap ?: Using (?:\[\d+\])?([^:\s]+):", log)}
    assert getattr(transport.bootstrap, "interface", "") == used


def two_nodes(ncclcheck: Command, folder: Path) -> Collective:
    """Two ranks on one GPU: what is said of the transport is what NCCL logs; its row of the largest all_reduce."""
    logs = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(folder / "nccl.%p.log"), "CUDA_VISIBLE_DEVICES": "0"}
    arguments = ("--nodes", "2", "--backend", "nccl", "--quick", "--time-budget", "20", "--save", "saved.json")
    ran = ncclcheck("bench", *arguments, "-o", "json", seconds=240, **logs)
    assert ran.code in (0, 1), ran.err
    assert "2 nodes share one GPU" in ran.err
    document = ran.document
    assert _failed(document) == []
    assert (document.job.backend, document.job.ranks, document.job.simulated) == ("nccl", 2, True)

    pids = {rank.rank: rank.pid for rank in document.run.ranks}
    assert {rank.rank for rank in document.measurements.transport} == {0, 1}
    for transport in document.measurements.transport:
        _agrees(transport, (folder / f"nccl.{pids[transport.rank]}.log").read_text())
        assert transport.nnodes == 2

    rows = [row for row in document.measurements.collectives if row.op == "all_reduce" and row.time_us]
    assert all(row.correct and row.expected_gb_s is None for row in rows)
    return max(rows, key=lambda row: row.bytes)


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_two_nodes_on_one_gpu(ncclcheck: Command, tmp_path: Path) -> None:
    largest = two_nodes(ncclcheck, tmp_path)
    assert largest.time_us
    bare = sorted(_bare("nccl", largest.bytes, 20) for _ in range(3))
    assert 0.97 * bare[0] <= largest.time_us.p50 <= 1.03 * bare[-1]
