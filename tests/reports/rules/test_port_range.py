"""A part of a node's ports is closed, or its segments are tiny: what one job meets by chance, or never sees."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import Echoes, Filter, Network, Node, Spread, Unread, Volley, replace
from ncclcheck.probes.machine.net import filters
from tests.helpers.reach_clusters import DROPPED, codes_told, hosts, judged

_OPEN = [33000, 37000, 52000, 55000, 58000]
_SHUT = Spread(open=_OPEN, shut=[41877, 46712])
_WELL = Spread(open=[*_OPEN, 41877, 46712], shut=[])
_RULE = "iifname eth0 tcp dport 40000-49999 ct state new drop"


def _with(nodes: list[Node], name: str, *chains: Filter) -> list[Node]:
    given = []
    for node in nodes:
        assert isinstance(node.network, Network)
        own = [*chains] if node.name == name else []
        given.append(replace(node, network=replace(node.network, filters=own)))
    return given


def _chain(rule: str, hook: str = "input", does: str = "drop") -> Filter:
    return Filter(family="inet", table="blocklist", chain="INPUT", hook=hook, does=[does], rule=rule)


def _to(name: str) -> Any:
    return lambda _, b: {"spread": _SHUT if b == name else _WELL}


def test_a_closed_part_of_the_range_is_told_with_the_rule_that_closes_it() -> None:
    nodes = _with(hosts(3), "h3", _chain("ip saddr 9.9.9.9 drop"), _chain(_RULE))
    (finding,) = [
        finding for finding in judged("NET006", nodes, _to("h3")).findings if finding.state.value != "ok"
    ]
    assert (finding.state.value, finding.where.node) == ("fail", "h3")
    assert "to 41877, 46712 none passes" in finding.what
    assert _RULE in finding.what
    assert "within 37001 to 51999" in finding.what
    assert "nft insert rule inet blocklist INPUT ip saddr 10.1.0.0/24 accept" in finding.remedies[0].commands


def test_a_rule_that_counts_connections_closes_no_part_of_the_range() -> None:
    counts = "ip saddr ct count over 2 reject"
    chain = replace(_chain(counts, does="reject"), part=counts)
    refused = Volley(opened=8, late=0, refused=7)

    def met(_: str, b: str) -> dict[str, object]:
        return {"spread": _SHUT, "volley": refused} if b == "h3" else {"spread": _WELL}

    verdict = judged("NET006", _with(hosts(3), "h3", chain), met)
    (finding,) = [finding for finding in verdict.findings if finding.state.value != "ok"]
    assert (finding.state.value, finding.where.node) == ("warn", "h3")
    assert finding.what.startswith("a rule of its own packet filter limits new connections")


def test_the_port_of_the_first_try_may_be_one_of_those_that_are_closed() -> None:
    met = {"connect": DROPPED, "spread": _SHUT}
    verdict = judged("NET006", hosts(3), lambda _, b: met if b == "h3" else {"spread": _WELL})
    (finding,) = [finding for finding in verdict.findings if finding.state.value != "ok"]
    assert finding.where.node == "h3"
    assert "answers on some of its ports" in finding.what


def test_without_a_filter_that_could_be_read_the_node_is_named_all_the_same() -> None:
    (finding,) = [
        finding for finding in judged("NET006", hosts(3), _to("h3")).findings if finding.state.value == "fail"
    ]
    assert finding.where.node == "h3"
    assert "a packet filter closes a part" in finding.what


def test_who_is_stopped_itself_is_named_and_not_those_whom_it_tried() -> None:
    verdict = judged("NET006", hosts(4), lambda a, _: {"spread": _SHUT if a == "h2" else _WELL})
    (finding,) = [finding for finding in verdict.findings if finding.state.value == "fail"]
    assert finding.where.node == "h2"
    assert "connects to some ports" in finding.what


def test_a_filter_that_stops_answers_too_is_told_once() -> None:
    verdict = judged("NET006", hosts(3), lambda a, b: {"spread": _SHUT if "h3" in (a, b) else _WELL})
    (finding,) = [finding for finding in verdict.findings if finding.state.value == "fail"]
    assert finding.where.node == "h3"
    assert "answers on some of its ports" in finding.what


@pytest.mark.parametrize(
    "change",
    [
        lambda *_: {"spread": _WELL},
        lambda *_: {"spread": Unread("absent", "no other ports were tried")},
        # One of those who tried it met a lost packet; the others reach that port.
        lambda a, b: {"spread": replace(_WELL, shut=[33000]) if (a, b) == ("h1", "h3") else _WELL},
        # Packets of any kind are lost on the way: NET009.
        lambda _, b: {"spread": _SHUT, "echoes": Echoes(sent=300, arrived=280, returned=260)} if b == "h3" else {},
    ],
)
def test_nothing_is_said_without_agreement(change: Any) -> None:
    assert all(
        "ports" not in finding.what or finding.state.value == "ok"
        for finding in judged("NET006", hosts(3), change).findings
    )


def test_tiny_segments_are_told_with_the_clamp() -> None:
    nodes = _with(hosts(3), "h2", _chain("tcp flags syn tcp option maxseg size set 100", "output", "tcpmss"))
    verdict = judged("NET008", nodes, lambda a, b: {"mss": 88 if "h2" in (a, b) else 1448})
    (finding,) = [finding for finding in verdict.findings if finding.state.value == "warn"]
    assert finding.where.node == "h2"
    assert "segments of 88 bytes, where the MTU allows 1448: h2's own packet filter" in finding.what
    assert "maxseg size set 100" in finding.what


@pytest.mark.parametrize("mss", [1448, 1348, 1000])
def test_segments_that_a_tunnel_makes_smaller_are_not_told(mss: int) -> None:
    assert codes_told(hosts(3), lambda *_: {"mss": mss}) == set()


def test_a_clamp_is_read_and_one_that_follows_the_route_is_none() -> None:
    rule = """{"rule": {"family": "ip", "table": "m", "chain": "o", "expr": [{"mangle": {"key": {"tcp option":
        {"name": "maxseg", "field": "size"}}, "value": VALUE}}]}}"""
    chain = """{"chain": {"family": "ip", "table": "m", "name": "o", "type": "filter", "hook": "output", "prio": 0,
        "policy": "accept"}}"""
    for value, does in (("100", ["tcpmss"]), ('{"rt": {"key": "mtu"}}', [])):
        chains = filters.parsed(f'{{"nftables": [{chain}, {rule.replace("VALUE", value)}]}}')
        assert isinstance(chains, list)
        assert [filter_.does for filter_ in chains] == [does] * bool(does)
        assert all("maxseg size set 100" in chain.rule for chain in chains)
