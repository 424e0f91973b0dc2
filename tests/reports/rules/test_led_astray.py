"""A variable of one node that leads its job to another network than that of all others."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import Connect, Job
from tests.helpers.clusters import LO, nic, node, route, verdict
from tests.helpers.reach_clusters import DROPPED, measured, pairs

_ROUTES = [route("10.1.0.0/24", interface="eth0"), route("10.2.0.0/24", interface="mgmt0")]


def _node(number: int, **env: str) -> Any:
    cards = (nic("eth0", f"10.1.0.{number}/24"), nic("mgmt0", f"10.2.0.{number}/24"))
    return node(f"h{number}", LO, *cards, routes=_ROUTES, env=env)


_GLOO = Job(nodes_asked=3, backend_asked="gloo")


@pytest.mark.parametrize("name", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
def test_the_variable_is_the_cause_and_stands_in_the_heading(name: str) -> None:
    judgement = verdict("NET003", _node(1), _node(2, **{name: "mgmt0"}), _node(3), job=_GLOO)
    (finding,) = judgement.findings
    assert finding.where.node == "h2"
    assert finding.what.startswith(
        f"{name}=mgmt0, which h[1,3] do not have, chooses mgmt0 (10.2.0.2) in 10.2.0.0/24"
    )
    assert [line for fix in finding.remedies for line in fix.commands] == [f"unset {name}   # on h2"]


def test_where_nobody_reaches_it_there_the_variable_is_the_failure() -> None:
    """Its own connections pass by the other interface, and NET006 would look for a filter."""
    nodes = [_node(1), _node(2, GLOO_SOCKET_IFNAME="mgmt0"), _node(3)]
    for connect, state in ((DROPPED, "fail"), (Connect(outcome="ok"), "warn")):
        measurements = measured(nodes, pairs("in", "h2", connect=connect))
        judgement = verdict("NET003", *nodes, job=_GLOO, measurements=measurements)
        (finding,) = [finding for finding in judgement.findings if finding.state.value != "ok"]
        assert finding.state.value == state
        assert finding.what.startswith("GLOO_SOCKET_IFNAME=mgmt0, which h[1,3] do not have")


@pytest.mark.parametrize(
    "nodes",
    [
        [_node(1, GLOO_SOCKET_IFNAME="eth0"), _node(2, GLOO_SOCKET_IFNAME="mgmt0"), _node(3)],
        [_node(1), _node(2, GLOO_SOCKET_IFNAME="eth0"), _node(3)],
        [_node(1, GLOO_SOCKET_IFNAME="mgmt0"), _node(2, GLOO_SOCKET_IFNAME="mgmt0"), _node(3)],
    ],
)
def test_it_is_not_named_where_others_have_it_or_it_leads_nowhere_else(nodes: list[Any]) -> None:
    findings = verdict("NET003", *nodes, job=_GLOO).findings
    assert not any("not have, chooses" in finding.what for finding in findings)
