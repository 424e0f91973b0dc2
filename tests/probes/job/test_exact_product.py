"""One product whose result is known: right on this machine, and a wrong bit is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ncclcheck.probes.facts import Fabric, Measurements, Node, PciDevice, Policy, RankSpeed, replace
from ncclcheck.probes.job.verify import exact_product
from ncclcheck.probes.job.verify.exact_product import Products, check
from ncclcheck.reports.expect.floors import floors, model_of
from ncclcheck.reports.judgement.findings import Finding
from tests.helpers.cards import four, gpu_node
from tests.helpers.clusters import node, verdict
from tests.sound.kinds import PLANS
from tests.sound.machine import Plan, cluster

CPU = torch.device("cpu")
HASH = "0x45cfa485e4c9e253"


def nothing() -> None:
    pass


def test_it_is_the_same_on_every_machine() -> None:
    products = check(CPU, 0.05, nothing)
    assert products.count >= 1
    assert products == Products(products.count, 0, HASH)


def test_it_is_exact_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the size for GPUs, of which a strip is computed here."""
    monkeypatch.setitem(exact_product._SIDE, "cpu", 4096)
    left, right = (exact_product._matrix(CPU, seed) for seed in (1, 2))
    product = left[:64] @ right
    assert product.abs().max() <= 2048
    assert torch.equal(product.half().float(), product)
    assert {*left[:2].flatten().tolist()} == {-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0}


def flipping(every: int, by: float = 1.0) -> Callable[..., Tensor]:
    """A torch.mm of which every so many call is wrong in one element."""
    right, calls = torch.mm, [0]

    def mm(left: Tensor, other: Tensor, *, out: Tensor) -> Tensor:
        right(left, other, out=out)
        calls[0] += 1
        if calls[0] % every == 0:
            out[17, 31] += by
        return out

    return mm


@pytest.mark.parametrize(("every", "wrong"), [(1, 6), (2, 3), (6, 1), (7, 0)])
def test_a_wrong_element_is_seen(monkeypatch: pytest.MonkeyPatch, every: int, wrong: int) -> None:
    monkeypatch.setattr(exact_product, "_MOST", 6)
    monkeypatch.setattr(torch, "mm", flipping(every))
    products = check(CPU, 60, nothing)
    assert (products.count, products.wrong) == (6, wrong)
    assert (products.sum == HASH) == (every > 1)


def test_two_errors_that_cancel_out_in_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    right, calls = torch.mm, [0]

    def mm(left: Tensor, other: Tensor, *, out: Tensor) -> Tensor:
        right(left, other, out=out)
        calls[0] += 1
        if calls[0] == 3:
            out[1, 5] += 1
            out[2, 5] -= 1
        return out

    monkeypatch.setattr(exact_product, "_MOST", 4)
    monkeypatch.setattr(torch, "mm", mm)
    assert check(CPU, 60, nothing).wrong == 1


def test_a_device_without_products(monkeypatch: pytest.MonkeyPatch) -> None:
    def mm(*_: Tensor, out: Tensor) -> Tensor:
        raise RuntimeError(f"not computed: {out.shape}")

    monkeypatch.setattr(torch, "mm", mm)
    assert check(CPU, 60, nothing) == Products()


def rank(number: int, **facts: Any) -> RankSpeed:
    given = {"products": 80, "product_sum": "0xaa", **facts}
    return RankSpeed(rank=number, node=f"n{number // 2}", device=f"cuda:{number % 2}", **given)


def findings_of(code: str, *ranks: RankSpeed, nodes: list[Node] | None = None, **more: Any) -> list[Finding]:
    measured = Measurements(rank_speeds=[*ranks])
    return verdict(code, *(nodes or [node("n0"), node("n1")]), command="bench", measurements=measured,
                   **more).findings  # fmt: skip


def test_a_gpu_that_computes_wrong_is_named() -> None:
    (finding,) = findings_of("BEN042", rank(0), rank(1), rank(2, wrong_products=3), rank(3))
    assert (finding.state.value, finding.where.node, finding.where.device) == ("fail", "n1", "cuda:0")
    assert "3 of 80" in finding.what


def test_a_gpu_that_is_always_wrong_in_the_same_way() -> None:
    (finding,) = findings_of("BEN042", rank(0), rank(1, product_sum="0xbb"), rank(2))
    assert (finding.where.node, finding.where.device) == ("n0", "cuda:1")


def test_two_that_differ_name_nobody_and_processors_are_not_compared_with_gpus() -> None:
    (finding,) = findings_of("BEN042", rank(0), rank(1, product_sum="0xbb"))
    assert (finding.state.value, finding.where.node) == ("fail", None)
    on_host = replace(rank(2, product_sum="0xbb"), device="cpu")
    assert findings_of("BEN042", rank(0), rank(1), on_host) == []
    assert verdict("BEN042", node("n0"), command="bench", measurements=Measurements()).state.value == "skipped"


def tree_of(count: int, *, shared: bool = False) -> Fabric:
    """GPUs each on a root port of its own, or all on one."""
    ports = ["0000:00:01.0" if shared else f"0000:00:0{i}.0" for i in range(count)]
    return Fabric(
        pci=[PciDevice(name=f"0000:{16 + i:02x}:00.0", kind="gpu", path=[port]) for i, port in enumerate(ports)]
    )


SPEEDS = {"memory_gb_s": 2800.0, "matmul_gflop_s": 640e3, "to_device_gb_s": 54.0, "from_device_gb_s": 52.0}


@pytest.mark.parametrize(
    ("speeds", "card", "states"),
    [
        ({}, {}, []),
        ({"memory_gb_s": 1500.0}, {}, ["warn"]),
        ({"matmul_gflop_s": 300e3}, {}, ["warn"]),
        ({"matmul_gflop_s": 300e3}, {"power_cap": 400.0}, []),
        ({"to_device_gb_s": 11.0}, {}, ["note"]),
        ({"to_device_gb_s": 11.0}, {"pcie_gen_max": 4}, []),
        ({"from_device_gb_s": 6.0}, {"pcie_gen_max": 4}, ["note"]),
        ({"memory_gb_s": 1.0}, {"mig": True}, []),
        ({"memory_gb_s": 1.0, "waited": 0.4}, {}, []),
        ({"memory_gb_s": 1.0}, {"model": "NVIDIA Graphics Device"}, []),
        ({"memory_gb_s": None}, {}, []),
    ],
)
def test_a_floor(speeds: dict[str, Any], card: dict[str, Any], states: list[str]) -> None:
    slow = gpu_node("n0", *four(every=card), fabric=tree_of(4))
    findings = findings_of("BEN041", rank(0, **{**SPEEDS, **speeds}), nodes=[slow])
    assert [finding.state.value for finding in findings] == states


def test_four_gpus_behind_one_port_copy_a_quarter_each() -> None:
    nodes = [gpu_node("n0", *four(), fabric=tree_of(4, shared=True))]
    assert findings_of("BEN041", rank(0, **{**SPEEDS, "to_device_gb_s": 6.0}), nodes=nodes) == []


def test_a_site_has_its_own_floor_and_an_unknown_model_is_said() -> None:
    nodes = [gpu_node("n0", *four(), fabric=tree_of(4))]
    policy = Policy(thresholds={"BEN041.memory_gb_s": 2900.0})
    assert [
        finding.state.value for finding in findings_of("BEN041", rank(0, **SPEEDS), nodes=nodes, policy=policy)
    ] == ["warn"]
    other = gpu_node("n0", *four(every={"model": "NVIDIA Graphics Device"}), fabric=tree_of(4))
    judged = verdict("BEN041", other, command="bench", measurements=Measurements(rank_speeds=[rank(0, **SPEEDS)]))
    assert (judged.state.value, judged.reason) == ("skipped", "no floor is known for NVIDIA Graphics Device")


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.kind)
def test_no_sound_machine_is_below_its_floor(plan: Plan) -> None:
    """At six tenths of the data sheet, with all GPUs behind one port copying at once."""
    subject = cluster(plan, 1).nodes[0]
    given = model_of(subject)
    least = {floor.metric: floor.least for floor in floors(subject, given)} if given else {}
    share = {"matmul_gflop_s": 0.6 / 0.4, "memory_gb_s": 0.85 / 0.5}
    speeds = {metric: value * share.get(metric, 0.5 / 0.25) for metric, value in least.items()}
    findings = findings_of("BEN041", replace(rank(0, **speeds), node=subject.name), nodes=[subject])
    assert findings == []
    slow = {metric: 0.9 * value for metric, value in least.items()}
    assert len(findings_of("BEN041", replace(rank(0, **slow), node=subject.name), nodes=[subject])) == len(least)


@pytest.mark.parametrize("model", ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H100-80C", "NVIDIA Thor"])
def test_models_without_a_floor(model: str) -> None:
    nodes = [gpu_node("n0", *four(every={"model": model}), fabric=tree_of(4))]
    assert findings_of("BEN041", rank(0, memory_gb_s=1.0, matmul_gflop_s=1.0), nodes=nodes) == []
