"""Rules about failing hosts, rails, read requests, BAR1 and plugins: where they stay silent, and where unsure."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Cluster,
    Commit,
    FileSystemAnswer,
    Health,
    Job,
    KernelEvent,
    MemoryModule,
    Mount,
    Node,
    Nvme,
    PluginFile,
    Pressure,
    Swap,
    Unread,
    Waiting,
    known,
    replace,
)
from ncclcheck.reports.judgement.findings import Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.sound import faults
from tests.sound.kinds import PLANS
from tests.sound.machine import Plan, cluster

DENIED = Unread("denied", "not for this user")
ABSENT = Unread("absent", "there is none")


def verdict(code: str, nodes: list[Node]) -> Verdict:
    job = Job(launcher="slurm", nodes_asked=len(nodes), nodes_answered=len(nodes))
    rule = [rule for rule in all_rules() if rule.code == code]
    return judge(Cluster(nodes=nodes, job=job), rule)[0]


def host(name: str = "a", **facts: Any) -> Node:
    return Node(name=name, health=Health(**facts))


def plan(kind: str) -> Plan:
    return next(entry for entry in PLANS if entry.kind == kind)


@pytest.mark.parametrize(
    ("code", "facts", "state"),
    [
        ("HST060", {"memory_errors": [MemoryModule(name="mc0", corrected=90, uncorrected=0)]}, "ok"),
        ("HST060", {"memory_errors": [MemoryModule(name="mc0", corrected=4000, uncorrected=0)]}, "note"),
        ("HST060", {"memory_errors": [MemoryModule(name="mc0", corrected=0, uncorrected=3)]}, "warn"),
        ("HST060", {"memory_errors": ABSENT}, "skipped"),
        ("HST060", {"memory_errors": DENIED}, "unknown"),
        ("HST061", {"swap": Swap(total=2**33, used=2**20), "pressure": ABSENT}, "ok"),
        ("HST061", {"swap": Swap(total=2**33, used=2**32), "pressure": Pressure(some=2.0, full=1.0)}, "note"),
        ("HST061", {"swap": Swap(total=0, used=0), "pressure": Pressure(some=9.0, full=6.0)}, "warn"),
        ("HST062", {"commit": Commit(mode=0, limit=10, used=90)}, "skipped"),
        ("HST062", {"commit": Commit(mode=2, limit=100, used=10)}, "ok"),
        ("HST062", {"commit": DENIED}, "unknown"),
        ("HST063", {"waiting": [Waiting(name="x", pid=7, seconds=2.0, user="kim")], "kernel": DENIED}, "note"),
        ("HST063", {"waiting": [Waiting(name="x", pid=7, seconds=2.0, user="u", wchan="__refrigerator")]}, "ok"),
        ("HST063", {"waiting": [], "kernel": [KernelEvent(name="hung task", times=1, line="", hours=0.1)]}, "ok"),
        ("HST063", {"waiting": DENIED}, "unknown"),
        ("STO060", {"answers": [FileSystemAnswer(name="/d", kind="nfs4", source="f:/d", error="ESTALE: stale")]},
         "warn"),
        ("STO060", {"answers": []}, "ok"),
        ("STO060", {"answers": DENIED}, "unknown"),
        ("STO061", {"disks": [Mount(point="/", kind="ext4", source="/dev/a", options=["ro", "rw"])]}, "ok"),
        ("STO061", {"disks": [Mount(point="/", kind="ext4", source="/dev/a", options=["ro"])]}, "ok"),
        ("STO061", {"disks": [Mount(point="/", kind="ext4", source="x", options=["rw", "emergency_ro"])]}, "warn"),
        ("STO061", {"disks": [], "kernel": [KernelEvent(name="file system given up", times=1, line="x")]}, "warn"),
        ("STO062", {"nvmes": [Nvme(name="nvme0", state="live")]}, "ok"),
        ("STO062", {"nvmes": [Nvme(name="nvme0", state=DENIED)]}, "ok"),
        ("STO062", {"nvmes": [Nvme(name="nvme0", state="resetting")]}, "warn"),
        ("STO062", {"nvmes": ABSENT}, "skipped"),
    ],
)  # fmt: skip
def test_one_host(code: str, facts: dict[str, Any], state: str) -> None:
    assert verdict(code, [host(**facts)]).state.value == state


def test_a_hung_task_of_yesterday_makes_no_warning() -> None:
    old = KernelEvent(name="hung task", times=1, line="task x:7 blocked", hours=20.0)
    waiting = [Waiting(name="x", pid=7, seconds=2.0, user="kim")]
    assert verdict("HST063", [host(waiting=waiting, kernel=[old])]).state.value == "note"


def test_a_node_with_fewer_disks_is_a_note() -> None:
    disks = [Nvme(name=f"nvme{number}", state="live", model="X") for number in range(4)]
    nodes = [host(name, nvmes=disks[: 3 if name == "c" else 4]) for name in "abcd"]
    judgement = verdict("STO062", nodes)
    assert (judgement.state.value, judgement.findings[0].where.node) == ("note", "c")


def _with_leaves(node: Node, *switches: str) -> Node:
    rdma = known(node.rdma)
    leaves = [
        replace(leaf, switch=name, identity=name) for leaf, name in zip(known(rdma.leaves), switches, strict=True)
    ]
    return replace(node, rdma=replace(rdma, leaves=leaves))


USUAL = [f"leaf-{number}" for number in range(8)]
OTHER = [f"far-{number}" for number in range(8)]
CROSSED = [USUAL[1], USUAL[0], *USUAL[2:]]


@pytest.mark.parametrize(
    ("cabling", "state", "named"),
    [
        ([USUAL] * 4, "ok", None),
        ([USUAL, USUAL, OTHER, OTHER], "ok", None),  # two units of a larger fabric
        ([USUAL, USUAL, CROSSED, USUAL], "warn", 2),
        ([USUAL, CROSSED], "note", 1),  # a draw
        ([USUAL, USUAL, ["spare", *USUAL[1:]], USUAL], "note", 2),
        ([USUAL, USUAL, CROSSED, USUAL[::-1], [*USUAL[4:], *USUAL[:4]]], "note", None),  # a fabric without rails
        ([["tor"] * 8, ["tor-2"] * 8], "ok", None),
    ],
)
def test_leaf_switches(cabling: list[list[str]], state: str, named: int | None) -> None:
    nodes = cluster(plan("dgx-h100"), len(cabling)).nodes
    judgement = verdict("RDM060", [_with_leaves(node, *names) for node, names in zip(nodes, cabling, strict=True)])
    assert judgement.state.value == state
    if named is not None and state == "warn":
        assert [finding.where.node for finding in judgement.findings if finding.state.value == "warn"] == [
            nodes[named].name
        ]


def test_leaf_switches_that_nobody_may_ask() -> None:
    nodes = [replace(n, rdma=replace(known(n.rdma), leaves=DENIED)) for n in cluster(plan("dgx-h100"), 2).nodes]
    assert verdict("RDM060", nodes).state.value == "unknown"
    assert verdict("RDM060", nodes[:1]).state.value == "skipped"


@pytest.mark.parametrize(("max_read", "state"), [(4096, "ok"), (512, "note"), (DENIED, "unknown"), (ABSENT, "ok")])
def test_cards_that_are_set_alike(max_read: Any, state: str) -> None:
    nodes = []
    for node in cluster(plan("dgx-h100"), 2).nodes:
        fabric = known(node.fabric)
        devices = [replace(device, max_read=max_read, extended_tags=True) for device in known(fabric.pci)]
        nodes.append(replace(node, fabric=replace(fabric, pci=devices)))
    assert verdict("FAB060", nodes).state.value == state


@pytest.mark.parametrize(
    ("model", "memory", "window", "state"),
    [
        ("Tesla T4", 16 << 30, 256 << 20, "note"),
        ("NVIDIA H100 80GB HBM3", 80 << 30, 128 << 30, "ok"),
        ("NVIDIA H100 80GB HBM3", 80 << 30, 256 << 20, "warn"),
        ("NVIDIA GeForce RTX 4090", 24 << 30, 256 << 20, "skipped"),
        ("NVIDIA A30-8C", 8 << 30, 256 << 20, "skipped"),
        ("NVIDIA GH200 480GB", 96 << 30, 0, "skipped"),
    ],
)
def test_windows(model: str, memory: int, window: int, state: str) -> None:
    node = cluster(plan("dgx-h100"), 1).nodes[0]
    gpus = known(node.gpus)
    cards = [replace(card, model=model, memory_total=memory, bar1=window) for card in known(gpus.cards)]
    assert verdict("GPU060", [replace(node, gpus=replace(gpus, cards=cards))]).state.value == state


@pytest.mark.parametrize(
    ("version", "symbols", "state"),
    [
        ("2.27.3", ["net v8", "collnet v8"], "ok"),
        ("2.27.3", ["net v4", "net v5"], "warn"),
        ("2.25.1", ["net v5"], "ok"),
        ("2.27.3", ["net v11"], "warn"),
        ("2.28.9", ["net v11", "tuner v1"], "warn"),
        ("2.28.9", ["net v11", "tuner v2"], "ok"),
        ("2.99.0", ["net v4"], "skipped"),
        ("2.27.3", [], "skipped"),
    ],
)
def test_interfaces_of_plugins(version: str, symbols: list[str], state: str) -> None:
    node = cluster(plan("aws-p5"), 1).nodes[0]
    nccl = known(node.nccl)
    file = PluginFile(name="libnccl-net.so", path="/p/libnccl-net.so", symbols=symbols)
    loaded = replace(known(nccl.loaded), version=version)
    changed = replace(node, nccl=replace(nccl, loaded=loaded, plugin_files=[file]))
    assert verdict("NCC060", [changed]).state.value == state


@pytest.mark.parametrize(("value", "state"), [("2000", "ok"), ("20000", "ok"), ("2097152", "warn"), ("x", "ok")])
def test_buffers(value: str, state: str) -> None:
    node = faults._with_variables(cluster(plan("dgx-h100"), 1).nodes[0], TORCH_NCCL_TRACE_BUFFER_SIZE=value)
    assert verdict("NCC061", [node]).state.value == state


@pytest.mark.parametrize(
    ("name", "state"),
    [("libnccl-tuner-example.so", "warn"), ("libnccl-tuner-basic.so", "warn"), ("libnccl-ofi-tuner.so", "ok")],
)
def test_tuners(name: str, state: str) -> None:
    node = cluster(plan("dgx-h100"), 1).nodes[0]
    nccl = replace(
        known(node.nccl), plugins=[f"/x/{name}"], plugin_files=[PluginFile(name=name, path=f"/x/{name}")]
    )
    assert verdict("NCC062", [replace(node, nccl=nccl)]).state.value == state


def test_rails_that_are_routed_or_not_crossed() -> None:
    nodes = cluster(plan("l40s-roce"), 2).nodes
    assert verdict("RDM061", nodes).state.value == "skipped"
    crossing = [faults._with_variables(node, NCCL_CROSS_NIC="1") for node in nodes]
    assert verdict("RDM061", crossing).state.value == "warn"
    routed = []
    for node in crossing:
        network = known(node.network)
        rails = [route for route in known(network.routes) if route.interface.startswith("ens3f")]
        more = [replace(route, interface=other, gateway="10.20.0.1") for route in rails
                for other in ("ens3f0np0", "ens3f1np1")]  # fmt: skip
        routed.append(replace(node, network=replace(network, routes=[*known(network.routes), *more])))
    assert verdict("RDM061", routed).state.value == "ok"


@pytest.mark.parametrize(("groups", "state"), [((40, 40), "ok"), ((40, 41), "unknown")])
def test_acs_by_iommu_groups(groups: tuple[int, int], state: str) -> None:
    """Where only root sees the registers: GPU and card below one switch in one group, or apart."""
    node = cluster(plan("coreweave-h100"), 1).nodes[0]
    fabric = known(node.fabric)
    devices = [
        replace(device, iommu_group=groups[0] + 100 * int(known(device.path)[0][5:7], 16) if device.kind == "gpu"
                else groups[1] + 100 * int(known(device.path)[0][5:7], 16)) if known(device.path) else device
        for device in known(fabric.pci)
    ]  # fmt: skip
    changed = replace(node, fabric=replace(fabric, pci=devices))
    assert verdict("FAB001", [changed]).state.value == state
