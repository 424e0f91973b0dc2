"""Nodes as they are sold, and what a job measured on them, for tests of expected bandwidth."""

from __future__ import annotations

from typing import Any

from ncclcheck.probes.facts import (
    Cluster,
    Collective,
    Gpu,
    Gpus,
    Interface,
    Job,
    Library,
    Measurements,
    Nccl,
    Node,
    NvFabric,
    NvLinks,
    Times,
    Unread,
)
from tests.helpers.cards import card
from tests.helpers.clusters import ABSENT, LO, nic, node
from tests.helpers.hcas import hca, port, rdma


def factor(op: str, ranks: int) -> float:
    """busbw / algbw, as nccl-tests defines it."""
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "broadcast": 1.0}.get(op, share)


NO_FABRIC = Unread("absent", "Not Supported")
SWITCH = NvFabric(state="completed", health="healthy")


def links(count: int = 18, speed_mbps: int = 26562, down: list[int] | None = None) -> NvLinks:
    return NvLinks(links=count, down=down or [], speed_mbps=speed_mbps)


def gpus(count: int, model: str, nvlinks: Any, fabric: Any = SWITCH, gen: int = 5) -> list[Gpu]:
    changes = {"model": model, "nvlinks": nvlinks, "fabric": fabric, "pcie_gen_max": gen, "pcie_width": 16}
    return [card(index, **changes) for index in range(count)]


def h100(count: int = 8) -> list[Gpu]:
    return gpus(count, "NVIDIA H100 80GB HBM3", links())


def machine(
    name: str,
    cards: list[Gpu],
    *rates: float,
    env: dict[str, str] | None = None,
    plugins: list[str] | None = None,
    interface: Interface | None = None,
    **facts: Any,
) -> Node:
    """A node with these GPUs and an InfiniBand port of each rate, Gb/s."""
    hcas = [hca(number, port(rate_gbit=rate), pci=f"0000:{number:02x}:00.0") for number, rate in enumerate(rates)]
    loaded = Library(path="libnccl.so.2", origin="pip package", version="2.27.3")
    given: dict[str, Any] = {
        "gpus": Gpus(cards=cards, others=[], usable=len(cards)) if cards else Gpus(usable=ABSENT),
        "rdma": rdma(*hcas) if hcas else ABSENT,
        "nccl": Nccl(loaded=loaded, plugins=plugins or [], conf_files=[]),
    }
    eth = interface or nic("eth0", "10.1.0.17/24", speed_mbit=100_000)
    return node(name, LO, eth, env=env, **{**given, **facts})


def job(*nodes: Node, own: int = 8, rows: list[Collective] | None = None, **facts: Any) -> Cluster:
    """A job with `own` ranks on each node."""
    backend = facts.pop("backend", "nccl")
    own_job = Job(
        nodes_asked=len(nodes), ranks=own * len(nodes), backend=backend, simulated=facts.pop("simulated", False)
    )
    measured = Measurements(collectives=rows or [], reach=facts.pop("reach", []))
    return Cluster(command="bench", nodes=list(nodes), job=own_job, measurements=measured, **facts)


def row(op: str, size: int, us: float, nodes: int, ranks: int) -> Collective:
    """A row of the table that took so many microseconds."""
    algbw = size / us / 1e3
    return Collective(
        op=op,
        bytes=size,
        dtype="float32",
        nodes=nodes,
        ranks=ranks,
        iterations=20,
        time_us=Times(p50=us, p95=us, p99=us, min=us, max=us, mean=us),
        algbw_gb_s=algbw,
        busbw_gb_s=algbw * factor(op, ranks),
        correct=True,
    )


def curve(
    op: str, nodes: int, ranks: int, busbw: float, latency_us: float = 60.0, most: int = 2**34
) -> list[Collective]:
    """Rows from 1 KiB to `most`, by latency and bandwidth."""
    sizes = [size for size in (2**10, 2**16, 2**20, 2**24, 2**28, 2**30, 2**34) if size <= most]
    per_byte = factor(op, ranks) / busbw / 1e3
    return [row(op, size, latency_us + per_byte * size, nodes, ranks) for size in sizes]
