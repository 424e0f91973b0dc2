"""GPU042, RDM030: a machine that is looked at alone is held against what its product is built with."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts import Namespace, Node, Unread, known, replace
from tests.helpers.clusters import DENIED, verdict
from tests.sound import faults
from tests.sound.clouds import aws_p5
from tests.sound.humble import aws_p4d, dgx_a100
from tests.sound.machine import Plan, cluster
from tests.sound.sites import dgx_h100

PLANS = [dgx_h100(), dgx_a100(), aws_p5(), aws_p4d()]


def alone(plan: Plan) -> Node:
    return cluster(plan, 1).nodes[0]


def without(plan: Plan, count: int) -> Node:
    """The node without its first EFA devices."""
    node = alone(plan)
    rdma = known(node.rdma)
    return replace(node, rdma=replace(rdma, devices=known(rdma.devices)[count:]))


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.kind)
def test_a_whole_machine_has_what_its_product_has(plan: Plan) -> None:
    assert [verdict(code, alone(plan)).state.value for code in ("GPU042", "RDM030")] == ["ok", "ok"]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.kind)
def test_a_lone_node_that_lacks_one(plan: Plan) -> None:
    gpu, hca = faults.gpu_missing(plan, alone(plan)), faults.hca_missing(plan, alone(plan))
    assert gpu is not None
    assert hca is not None
    assert [verdict("GPU042", gpu).state.value, verdict("RDM030", gpu).state.value] == ["warn", "ok"]
    assert [verdict("GPU042", hca).state.value, verdict("RDM030", hca).state.value] == ["ok", "warn"]


@pytest.mark.parametrize(
    ("lacking", "state"), [(0, "ok"), (1, "warn"), (16, "note"), (24, "note"), (32, "skipped")]
)
def test_an_instance_may_be_started_with_a_part_of_its_cards(lacking: int, state: str) -> None:
    assert verdict("RDM030", without(aws_p5(), lacking)).state.value == state


def test_half_of_the_cards_on_one_node_alone_is_no_choice() -> None:
    judgement = verdict("RDM030", *cluster(aws_p5(), 2).nodes, replace(without(aws_p5(), 16), name="odd"))
    assert [f.where.node for f in judgement.findings if f.state.value == "warn"] == ["odd"]


def test_a_container_may_hide_cards() -> None:
    node = without(aws_p5(), 1)
    own = replace(known(node.container), namespaces=[Namespace(name="net", host=False)])
    assert verdict("RDM030", replace(node, container=own)).state.value == "skipped"


@pytest.mark.parametrize("product", ["Microsoft Corporation Virtual Machine", "NVIDIA DGX Station A100", ""])
def test_a_product_that_is_built_in_several_ways_is_skipped(product: str) -> None:
    node = alone(dgx_h100())
    other = replace(node, fabric=replace(known(node.fabric), product=product))
    assert verdict("GPU042", other).state.value == "skipped"


@pytest.mark.parametrize("unread", [DENIED, Unread("absent", "there is no DMI")])
def test_a_product_that_was_not_read(unread: Unread) -> None:
    node = alone(dgx_h100())
    other = replace(node, fabric=replace(known(node.fabric), product=unread))
    assert verdict("GPU042", other).state.value in ("unknown", "skipped")
