"""A filter of a node that stops a part, or leads packets elsewhere, is the cause and stands in the heading."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Cluster,
    Connect,
    Echoes,
    Filter,
    Job,
    Network,
    Node,
    PathMtu,
    RankState,
    Run,
    Volley,
    replace,
)
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.scale.suspicion import whole_has_failed
from tests.helpers.clusters import LO, nic, node, route, verdict
from tests.helpers.reach_clusters import DROPPED, SLOW, STALLED, Change, hosts, judged, measured


def _filtered(rule: str, hook: Any = "input", does: str = "drop", *, partly: bool = True) -> list[Node]:
    """Three hosts, of which h2 has such a rule."""
    nodes = hosts(3)
    chain = Filter(
        family="ip", table="t", chain="c", hook=hook, does=[does], rule=rule, part=rule if partly else ""
    )
    for place, machine in enumerate(nodes):
        assert isinstance(machine.network, Network)
        nodes[place] = replace(
            machine, network=replace(machine.network, filters=[chain] if machine.name == "h2" else [])
        )
    return nodes


def _to_h2(**facts: Any) -> Change:
    return lambda _, b: facts if b == "h2" else {}


def _bad(code: str, nodes: list[Node], change: Change, **more: Any) -> Finding:
    (finding,) = [
        finding for finding in judged(code, nodes, change, **more).findings if finding.state is not State.OK
    ]
    return finding


def _waiting(count: int) -> Run:
    ranks = [
        RankState(rank=i, node=f"h{i + 1}", pid=i + 1, phase="start", last_step="init_process_group (gloo)")
        for i in range(count)
    ]
    return Run(started_job=True, stopped_by="deadline", ranks=ranks)


REFUSED = Volley(opened=8, late=0, refused=7)
COUNTS = "& syn connlimit counter reject"


def test_a_limit_that_refuses_is_a_warning_and_after_a_job_in_vain_the_failure() -> None:
    nodes, change = _filtered(COUNTS, does="reject"), _to_h2(volley=REFUSED)
    before = _bad("NET006", nodes, change)
    assert (before.state, before.where.node) == (State.WARN, "h2")
    assert "a rule of its own packet filter limits new connections (chain ip t c (hook input)" in before.what
    assert "of 16 that were opened at once 14 were refused" in before.what
    assert before.remedies[0].commands == ["nft insert rule ip t c ip saddr 10.1.0.0/24 accept"]
    job = Job(nodes_asked=3, ranks=3, backend="gloo")
    after = _bad("NET006", nodes, change, job=job, run=_waiting(3))
    assert (after.state, after.where.node) == (State.FAIL, "h2")
    assert "the job then waited" in after.what


@pytest.mark.parametrize(("volley", "searched"), [(REFUSED, False), (Volley(opened=8, late=0), True)])
def test_no_groups_are_tried_where_a_limit_explains_the_job(volley: Volley, searched: bool) -> None:
    nodes = hosts(3)
    job = Job(nodes_asked=3, ranks=3, backend="gloo")
    cluster = Cluster(nodes=nodes, measurements=measured(nodes, _to_h2(volley=volley)), job=job, run=_waiting(3))
    assert whole_has_failed(cluster) is searched


@pytest.mark.parametrize(
    ("hook", "does", "words", "end"),
    [
        ("postrouting", "snat", "h2's own packet filter writes another sender on it by SNAT", "daddr"),
        ("output", "dnat", "h2's own packet filter leads it to another address by DNAT", "daddr"),
    ],
)
def test_a_translation_stands_in_the_heading(hook: str, does: str, words: str, end: str) -> None:
    nodes = _filtered(f"oifname eth0 {does}", hook, does, partly=False)
    finding = _bad("NET006", nodes, lambda a, _: {"connect": DROPPED} if a == "h2" else {})
    assert words in finding.what
    assert f"nft insert rule ip t c ip {end} 10.1.0.0/24 accept" in finding.remedies[1].commands


def test_a_translation_for_containers_has_no_part_in_it() -> None:
    nodes = _filtered("ip saddr 172.17.0.0/16 masquerade", "postrouting", "masquerade", partly=False)
    finding = _bad("NET006", nodes, lambda a, _: {"connect": DROPPED} if a == "h2" else {})
    assert "SNAT" not in finding.what


def test_an_address_of_an_own_interface_that_a_rule_writes_is_no_detour() -> None:
    nodes = _filtered("oifname eth0 snat", "postrouting", "snat", partly=False)
    two = node("h2", LO, nic("eth0", "10.1.0.2/24"), nic("mgmt0", "10.9.0.2/24"))
    assert isinstance(two.network, Network)
    assert isinstance(nodes[1].network, Network)
    nodes[1] = replace(two, network=replace(two.network, filters=nodes[1].network.filters))
    finding = _bad("NET006", nodes, lambda a, _: {"seen_as": "10.9.0.2"} if a == "h2" else {})
    assert "h2 itself writes another sender on it (NAT)" in finding.what
    assert finding.where.device == "eth0"


PART = "h2 itself stops a part of what it takes in by a rule of its own packet filter (chain ip t c (hook input)"


@pytest.mark.parametrize(
    ("code", "rule", "facts"),
    [
        ("NET007", "length > 1300 drop", {"path_mtu": PathMtu(sent=1500, arrived=1280)}),
        ("NET008", "l4proto tcp connbytes drop", {"bursts": [SLOW]}),
        ("NET009", "statistic drop", {"echoes": Echoes(sent=300, arrived=240, returned=240)}),
    ],
)
def test_a_rule_that_stops_a_part_is_the_cause(code: str, rule: str, facts: dict[str, Any]) -> None:
    finding = _bad(code, _filtered(rule), _to_h2(**facts))
    assert PART in finding.what
    assert finding.where.node == "h2"
    assert finding.remedies[0].commands == ["nft insert rule ip t c ip saddr 10.1.0.0/24 accept"]
    other = _bad(code, _filtered(f"& syn {rule}"), _to_h2(**facts))
    assert PART not in other.what


def test_a_stream_that_dies_beside_small_packets_that_pass_accuses_no_cable() -> None:
    finding = _bad("NET008", hosts(3), _to_h2(bursts=[STALLED]))
    assert "connections to h2 open, and then carry next to nothing" in finding.what
    assert "a filter that counts bytes or packets" in finding.what
    assert not [line for fix in finding.remedies for line in fix.commands if "ethtool" in line]
    own = _bad("NET008", _filtered("iifname eth0 drop", partly=False), _to_h2(bursts=[STALLED]))
    assert "h2's own packet filter can do that (chain ip t c (hook input): iifname eth0 drop)" in own.what


def test_an_interface_without_an_address_is_the_cause_and_no_missing_route() -> None:
    nodes = [
        node(
            f"h{i}",
            LO,
            nic("eth0", *([f"10.1.0.{i}/24"] if i < 3 else ["fd00::3/64"])),
            nic("mgmt0", f"10.9.0.{i}/24"),
            routes=[*([route("10.1.0.0/24", "eth0")] if i < 3 else []), route("10.9.0.0/24", "mgmt0")],
            own=f"10.1.0.{i}" if i < 3 else f"10.9.0.{i}",
        )
        for i in (1, 2, 3)
    ]
    findings = verdict("NET003", *nodes, job=Job(nodes_asked=3, backend="gloo")).findings
    (finding,) = [each for each in findings if each.state is not State.OK]
    assert "eth0 has no address of IPv4, so the job would use mgmt0" in finding.what
    assert not [line for fix in finding.remedies for line in fix.commands if "ip route" in line]


def test_refused_is_the_outcome_that_a_redirect_has() -> None:
    nodes = _filtered("tcp dport 1024-65535 redirect", "prerouting", "redirect", partly=False)
    refused = Connect(outcome="refused", detail="Connection refused")
    finding = _bad("NET006", nodes, _to_h2(connect=refused))
    assert "h2's own packet filter leads it to a port of its own by REDIRECT" in finding.what
