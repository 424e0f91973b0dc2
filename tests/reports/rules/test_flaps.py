"""NET019: a link of the job that came and went since boot."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import Cluster, Node, Unread, known, replace
from ncclcheck.reports.judgement.findings import Finding, State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.helpers.clusters import nic, node
from tests.sound.kinds import PLANS
from tests.sound.machine import cluster

_RULE = [rule for rule in all_rules() if rule.code == "NET019"]
_DAY = 86400.0
_DENIED = Unread("denied", "/sys/class/net: Permission denied")


def _node(name: str, downs: int | Unread, days: float = 5.0, **more: Any) -> Node:
    made = node(name, nic("eth0", f"10.0.0.{name[1:]}/24", downs=downs, **more))
    return replace(made, host=replace(known(made.host), uptime_s=days * _DAY))


def _judged(*nodes: Node) -> Verdict:
    return judge(Cluster(nodes=list(nodes)), _RULE)[0]


def _bad(*nodes: Node) -> list[Finding]:
    return [finding for finding in _judged(*nodes).findings if finding.state.rank < State.OK.rank]


def test_the_node_whose_link_flaps_is_named() -> None:
    findings = _bad(_node("n1", 2), _node("n2", 61), _node("n3", 1))
    assert [(finding.state, finding.where.node, finding.where.device) for finding in findings] == [
        (State.WARN, "n2", "eth0")
    ]
    assert "61 times in 5 days, 1.5 on other nodes" in findings[0].what


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([_node("n1", 2), _node("n2", 6), _node("n3", 2)], id="as few as drivers and bonds do"),
        pytest.param([_node("n1", 2), _node("n2", 40, days=300), _node("n3", 2)], id="a year of maintenance"),
    ],
)
def test_a_few_times_are_no_flapping(nodes: list[Node]) -> None:
    assert not _bad(*nodes)
    assert _judged(*nodes).state is State.OK


def test_what_all_links_did_is_a_note() -> None:
    findings = _bad(_node("n1", 30), _node("n2", 34), _node("n3", 28))
    assert {finding.state for finding in findings} == {State.NOTE}


def test_so_is_a_node_without_others() -> None:
    assert [finding.state for finding in _bad(_node("n1", 30))] == [State.NOTE]


def test_a_link_that_no_job_uses_is_not_judged() -> None:
    quiet = nic("eth0", "10.0.0.1/24", downs=1)
    usb = nic("usb0", "169.254.3.1/24", downs=900, driver="cdc_ether")
    env = {"NCCL_SOCKET_IFNAME": "eth0"}
    nodes = [replace(node(f"n{k}", quiet, usb, env=env), host=_node("n1", 1).host) for k in (1, 2)]
    assert not _bad(*nodes)


def test_members_of_a_bond_carry_it() -> None:
    def made(name: str, downs: int) -> Node:
        bond = nic("bond0", f"10.0.0.{name[1:]}/24", kind="bond", members=["eth1", "eth2"], downs=0)
        own = node(name, bond, nic("eth1", downs=1), nic("eth2", downs=downs))
        return replace(own, host=known(_node(name, 1).host))

    assert [finding.where.device for finding in _bad(made("n1", 1), made("n2", 50))] == ["eth2"]


def test_the_interface_of_a_roce_rail_counts() -> None:
    sound = cluster(next(plan for plan in PLANS if plan.kind == "h200-roce"), 2, "site")
    last = sound.nodes[-1]
    network = known(last.network)
    changed = [
        replace(interface, downs=99) if interface.name == "ens3np0" else interface
        for interface in known(network.interfaces)
    ]
    flapping = replace(last, network=replace(network, interfaces=changed))
    findings = _bad(sound.nodes[0], flapping)
    assert [(finding.where.node, finding.where.device) for finding in findings] == [(last.name, "ens3np0")]


def test_many_times_since_nobody_knows_when_are_unknown() -> None:
    late = _node("n2", 61)
    late = replace(late, host=replace(known(late.host), uptime_s=_DENIED))
    findings = _judged(_node("n1", 2), late).findings
    assert {finding.where.node: finding.state for finding in findings} == {"n1": State.OK, "n2": State.UNKNOWN}
    assert "eth0 61 times" in next(finding.what for finding in findings if finding.state is State.UNKNOWN)


def test_few_times_are_few_however_long_it_ran() -> None:
    calm = _node("n1", 3)
    calm = replace(calm, host=replace(known(calm.host), uptime_s=_DENIED))
    assert _judged(calm).state is State.OK


def test_what_is_not_counted_is_not_judged() -> None:
    assert _judged(_node("n1", _DENIED)).state is State.SKIPPED
