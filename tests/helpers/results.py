"""Results for tests of what compares them: benches with made-up rows, nodes with the facts that may change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ncclcheck.probes.facts import (
    Cluster,
    Collective,
    Counter,
    Fabric,
    Gpu,
    Gpus,
    Hca,
    Interface,
    Job,
    Measurements,
    Network,
    Node,
    Packets,
    PciDevice,
    PcieLink,
    Port,
    Rdma,
    Times,
    Xid,
)
from ncclcheck.reports.judgement import jsondoc
from tests.helpers import stories

MIB = 2**20


def row(p50: float, spread: float = 0.01, op: str = "all_reduce", size: int = 64 * MIB, **more: Any) -> Collective:
    """A row whose interval is p50 by (1 - spread) and (1 + spread)."""
    times = Times(
        p50=p50, p95=p50 * (1 + 2 * spread), p99=p50 * (1 + 2 * spread), min=p50 * (1 - 2 * spread),
        max=p50 * (1 + 3 * spread), mean=p50, median_low=p50 * (1 - spread), median_high=p50 * (1 + spread),
    )  # fmt: skip
    given = {"dtype": "float32", "nodes": 2, "ranks": 4, "iterations": 20, "time_us": times, **more}
    return Collective(op=op, bytes=size, **given)


def bench(*rows: Collective, nodes: int = 2, **job: Any) -> Cluster:
    asked = {"backend": "nccl", "ranks": 4, "nodes_asked": nodes, **job}
    machines = [Node(name=f"a{number}") for number in range(nodes)]
    measured = Measurements(collectives=list(rows))
    return Cluster(command="bench", nodes=machines, job=Job(**asked), measurements=measured)


def gpus(*models: str, **facts: Any) -> Gpus:
    cards = [Gpu(name=f"GPU {i}", index=i, pci=f"{i}", model=model, **facts) for i, model in enumerate(models)]
    return Gpus(cards=cards, others=[], pci=[f"{i}" for i in range(len(models))])


def port(value: int = 0, **facts: Any) -> Rdma:
    counters = [Counter(name="link_downed", value=value), Counter(name="packet_seq_err", value=value)]
    ports = [Port(name="1", **{"state": "ACTIVE", "rate_gbit": 400.0, "counters": counters, **facts})]
    return Rdma(devices=[Hca(name="mlx5_0", ports=ports)])


def cable(**facts: Any) -> Network:
    return Network(interfaces=[Interface(name="eth0", kind="physical", **facts)], routes=[])


def slot(width: int) -> Fabric:
    link = PcieLink(gts=32.0, width=width, most_gts=32.0, most_width=16)
    return Fabric(pci=[PciDevice(name="0000:1b:00.0", kind="nic", link=link)])


def counted(packets: int, drops: int) -> Network:
    return cable(packets=Packets(packets=packets, errors=0, drops=drops))


def xid(code: int, times: int) -> Gpus:
    return Gpus(xids=[Xid(name=f"Xid {code}", code=code, pci="0", line="NVRM", times=times)])


GONE = Rdma(devices=[Hca(name="mlx5_0"), Hca(name="mlx5_1")]), Rdma(devices=[Hca(name="mlx5_0")])


def write(folder: Path, name: str, story: str, **changes: Any) -> str:
    document = json.loads(jsondoc.encode(stories.document(story))) | changes
    (folder / name).write_text(json.dumps(document))
    return name


def slower(folder: Path, name: str, times: float) -> str:
    """The healthy story with slower collectives."""
    document = json.loads(jsondoc.encode(stories.document("healthy")))
    for collective in document["measurements"]["collectives"]:
        if collective["time_us"]:
            collective["time_us"] = {key: value and value * times for key, value in collective["time_us"].items()}
            collective["busbw_gb_s"] = collective["busbw_gb_s"] and collective["busbw_gb_s"] / times
    (folder / name).write_text(json.dumps(document))
    return name
