"""NET017: data that goes over the slower of two networks, known by link speeds or by measuring."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import Connections, Endpoint, Job, Node, PairTime, Resolution, Transport, replace
from ncclcheck.reports.judgement.findings import State, Verdict
from tests.helpers.clusters import LO, host, nic, node, verdict
from tests.helpers.reach_clusters import FAST, SLOW, measured

GLOO = Job(launcher="ssh", nodes_asked=2, nodes_answered=2, backend="gloo")


def _nodes(
    named: str = "10.2", eth: Any = 100_000, mgmt: Any = 1000, kind: str = "physical", **env: str
) -> list[Node]:
    """Two nodes with eth0 in 10.1.0.0/24 and mgmt0 in 10.2.0.0/24; their names lead to one of them."""
    return [
        node(
            f"h{i}",
            LO,
            nic("eth0", f"10.1.0.{i}/24", speed_mbit=eth, kind=kind),
            nic("mgmt0", f"10.2.0.{i}/24", speed_mbit=mgmt, kind=kind),
            env=env,
            host=host(own_name=Resolution(name=f"h{i}", addresses=[f"{named}.0.{i}"])),
        )
        for i in (1, 2)
    ]


def _judged(nodes: list[Node], job: Job = GLOO, **facts: Any) -> Verdict:
    return verdict("NET017", *nodes, job=job, **facts)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, State.WARN),
        ({"named": "10.1"}, State.OK),
        ({"mgmt": 100_000}, State.OK),
        ({"mgmt": 60_000}, State.OK),
        ({"kind": "veth"}, State.OK),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, State.OK),
        ({"named": "10.1", "GLOO_SOCKET_IFNAME": "mgmt0"}, State.WARN),
    ],
)
def test_by_what_cards_report(changes: dict[str, Any], state: State) -> None:
    judgement = _judged(_nodes(**changes))
    assert judgement.state is state
    if state is State.WARN:
        assert (
            "goes over mgmt0, 1 Gb/s, and all nodes share a faster network: eth0, 100 Gb/s"
            in judgement.findings[0].what
        )
        assert judgement.findings[0].remedies[0].commands == ["export GLOO_SOCKET_IFNAME=eth0"]


def test_a_network_that_one_node_lacks_is_not_shared() -> None:
    first, second = _nodes()
    assert _judged([first, replace(second, network=_nodes(eth=10)[0].network)]).state is State.OK


def _job(interface: str, gb_s: float, source: str = "sockets", network: str = "TCP") -> dict[str, Any]:
    """A job between the two nodes over one interface, and bursts over eth0 before it."""
    nodes = _nodes(kind="veth")
    end = [Endpoint(interface=interface, address="10.0.0.1")]
    transports = [
        Transport(
            rank=rank, node=f"h{rank + 1}", source=source, network=network, interfaces=end,  # type: ignore[arg-type]
            connections=[Connections(kind="TCP", peers="inter", count=1)],
        )
        for rank in (0, 1)
    ]  # fmt: skip
    pair = PairTime(a="h1", b="h2", bytes=1, a_to_b_gb_s=gb_s, b_to_a_gb_s=gb_s / 2)
    return {"nodes": nodes, "measurements": replace(measured(nodes), transport=transports, pairs=[pair])}


@pytest.mark.parametrize(
    ("interface", "gb_s", "state"),
    [("mgmt0", 0.0014, State.WARN), ("mgmt0", 1.0, State.OK), ("eth0", 0.0014, State.OK)],
)
def test_by_what_was_measured(interface: str, gb_s: float, state: State) -> None:
    judgement = _judged(**_job(interface, gb_s))
    assert judgement.state is state
    if state is State.WARN:
        assert "mgmt0, at most 0.011 Gb/s between two nodes" in judgement.findings[0].what
        assert judgement.findings[0].remedies[0].commands == ["export GLOO_SOCKET_IFNAME=eth0"]


def test_nccl_over_sockets_is_told_its_own_variable() -> None:
    given = _job("mgmt0", 0.0014, "log", "Socket")
    (finding,) = _judged(**given, job=replace(GLOO, backend="nccl")).findings
    assert finding.remedies[0].commands == ["export NCCL_SOCKET_IFNAME='=eth0'"]


def test_data_over_rdma_is_none_of_this() -> None:
    given = _job("mgmt0", 0.0014, "log", "IB")
    assert _judged(**given, job=replace(GLOO, backend="nccl")).state is State.OK


def test_a_network_that_is_as_slow_is_no_better() -> None:
    given = _job("mgmt0", 0.005)
    slow = measured(given["nodes"], lambda *_: {"bursts": [SLOW]})
    assert FAST.bytes > SLOW.bytes
    given["measurements"] = replace(given["measurements"], reach=slow.reach)
    assert _judged(**given).state is State.OK
