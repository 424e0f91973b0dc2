"""The lines beside the table of collectives: the numbers behind the culprits."""

from __future__ import annotations

from ncclcheck.probes.facts import (
    JobMemory,
    Lateness,
    Measurements,
    NodeSpeed,
    PairTime,
    RankMemory,
    RankSpeed,
    Times,
    Transport,
    replace,
)
from ncclcheck.probes.facts.measured.transport import Connections, Endpoint
from ncclcheck.reports.text.measured import lines

MIB = 2**20


def late(rank: int, mean: float) -> Lateness:
    times = Times(p50=mean, p95=mean, p99=mean, min=0.0, max=mean, mean=mean)
    return Lateness(rank=rank, node=f"n{rank}", iterations=9, last=1, late_us=times, wall_s=1.0, cpu_s=0.5)


def transport(rank: int, interface: str) -> Transport:
    over = Connections(kind="TCP", peers="inter", count=2)
    used = Endpoint(interface=interface, address="10.0.0.1")
    return Transport(rank=rank, node=f"n{rank}", source="sockets", connections=[over], interfaces=[used])


ALL = Measurements(
    rank_speeds=[RankSpeed(rank=r, node=f"n{r}", device="cpu", matmul_gflop_s=50.0 + r) for r in range(3)],
    node_speeds=[NodeSpeed(node="n0", ranks=2, bytes=MIB, busbw_gb_s=4.0)],
    pairs=[
        PairTime(a="n0", b="n1", bytes=MIB, a_to_b_gb_s=2.0, b_to_a_gb_s=1.5, latency_us=90.0),
        PairTime(a="n0", b="n2", bytes=MIB, round=1, state="timed_out", reason="n2 was silent"),
    ],
    lateness=[late(0, 10.0), late(1, 20_000.0), late(2, 12.0)],
    transport=[transport(rank, "eth0") for rank in range(3)],
    memory=JobMemory(
        ranks=[RankMemory(rank=r, node="n0", device="cpu", by="rss", peak=300 * MIB) for r in (0, 1)]
    ),
)


def test_each_subject_has_its_line() -> None:
    assert lines(ALL, 200) == [
        "  alone      matrix product 50 to 52 (median 51) GFLOP/s a rank; all_reduce within a node 4 GB/s",
        "  pairs      2 exchanges of two nodes in 2 rounds; 1 did not succeed; each way 1.5 to 2 GB/s; "
        "latency 90.0 us",
        "  lateness   on average rank 1 on n1 is the latest, by 20.00 ms an iteration; the median rank by 12.0 us",
        "  transport  TCP over eth0",
        "  memory     300 MiB a rank at the peak",
    ]


def test_gpus_multiply_in_tflop_s() -> None:
    """An H100 is at about 740 TFLOP/s."""
    speeds = [RankSpeed(rank=r, node="n0", device="cuda:0", matmul_gflop_s=740_000.0 + 1000 * r) for r in range(2)]
    assert "matrix product 740 to 741 TFLOP/s a rank" in lines(Measurements(rank_speeds=speeds), 200)[0]


def test_ranks_that_differ_are_counted() -> None:
    """One rank goes another way, and one could not be read."""
    mixed = [transport(0, "eth0"), transport(1, "docker0"), Transport(rank=2, node="n2", source="sockets")]
    assert lines(replace(ALL, transport=mixed), 200)[3] == (
        "  transport  TCP over eth0 (1 rank); TCP over docker0 (1 rank)"
    )


def test_nothing_measured_says_nothing_and_lines_fit() -> None:
    assert lines(Measurements(), 80) == []
    assert max(map(len, lines(ALL, 80))) <= 80
