"""What was seen on a node that explains why it is slow: policers, rules with a rate, buffers, other traffic."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from ncclcheck.probes.facts import Burst, replace
from ncclcheck.probes.machine.net import netlink
from ncclcheck.probes.machine.net.filters import parsed
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.subjects.failures.held_up import held_up
from tests.helpers.stories import load

_RATE = 12_500_000  # bytes a second: 100 Mbit/s


def _attribute(name: int, data: bytes) -> bytes:
    padded = data.ljust((len(data) + 3) & ~3, b"\0")
    return struct.pack("=HH", 4 + len(data), name) + padded


_POLICER = _attribute(1, struct.pack("=5I", 0, 0, 0, 0, 0) + bytes(8) + struct.pack("=I", _RATE))
_ACTION = _attribute(1, b"police\0") + _attribute(2, _POLICER)


def test_a_policer_is_found_wherever_its_filter_keeps_it() -> None:
    assert netlink._police(_attribute(6, _POLICER), "u32") == _RATE
    assert netlink._police(_attribute(7, _attribute(1, _ACTION)), "u32") == _RATE
    assert netlink._police(_attribute(2, _attribute(1, _ACTION)), "matchall") == _RATE
    wide = _attribute(1, struct.pack("=8I", *[0] * 7, 0xFFFFFFFF)) + _attribute(8, struct.pack("=Q", 2**33))
    assert netlink._police(_attribute(2, _attribute(1, _attribute(1, b"police\0") + _attribute(2, wide)))) == 2**33


def test_a_filter_without_a_policer_has_no_rate() -> None:
    other = _attribute(1, b"mirred\0") + _attribute(2, bytes(32))
    assert netlink._police(_attribute(7, _attribute(1, other)), "u32") == 0
    assert netlink._police(b"", "u32") == 0
    assert netlink._police(b"\x04\x00\x01", "matchall") == 0
    assert netlink._police(_attribute(1, b"\xff" * 40), "u32") == 0


def _chain(*expressions: object) -> str:
    chain = {"family": "inet", "table": "t", "name": "c", "type": "filter", "hook": "input", "policy": "accept"}
    rule = {"family": "inet", "table": "t", "chain": "c", "expr": [*expressions]}
    return json.dumps({"nftables": [{"chain": chain}, {"rule": rule}]})


_OVER = {
    "limit": {
        "rate": 12,
        "rate_unit": "mbytes",
        "burst": 128,
        "burst_unit": "kbytes",
        "per": "second",
        "inv": True,
    }
}
_SYN = {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "flags"}}, "right": "syn"}}


def test_a_rule_with_a_rate_of_data_slows() -> None:
    (rule,) = parsed(_chain(_OVER, {"drop": None}))  # type: ignore[misc]
    assert rule.slows == "limit rate over 12 mbytes/second drop"


@pytest.mark.parametrize(
    ("first", "passed"),
    [
        ([], 3000),
        ([{"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}},
          {"accept": None}], 0),
    ],
)  # fmt: skip
def test_rules_that_every_packet_of_a_connection_passes_are_counted(first: list[Any], passed: int) -> None:
    of = {"family": "inet", "table": "t", "chain": "c"}
    saddr = {"payload": {"protocol": "ip", "field": "saddr"}}
    bans = [[{"match": {"op": "==", "left": saddr, "right": f"203.0.0.{i}"}}, {"drop": None}] for i in range(3000)]
    chain = {"family": "inet", "table": "t", "name": "c", "type": "filter", "hook": "input", "policy": "accept"}
    rules = [{"rule": {**of, "expr": expression}} for expression in ([first] if first else []) + bans]
    (rule,) = parsed(json.dumps({"nftables": [{"chain": chain}, *rules]}))  # type: ignore[misc]
    assert rule.passed == passed
    cut = json.dumps({"nftables": [{"chain": chain}, *rules]})[:200_000]
    (rule,) = parsed(cut)  # type: ignore[misc]
    assert rule.passed == 0 if first else 1000 < rule.passed < passed


def test_a_limit_of_new_connections_or_pings_does_not() -> None:
    (rule,) = parsed(_chain(_SYN, _OVER, {"drop": None}))  # type: ignore[misc]
    assert not rule.slows
    assert "limit rate over" in rule.rule


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("tcp-buffers-that-slow-one-host", {"NET016"}),
        ("a-backup-over-the-same-card", {"NET008"}),
        ("a-filter-left-at-100-mbit", {"NET008"}),
        ("a-route-left-by-the-management-card", {"NET003"}),
        ("healthy", set()),
    ],
)
def test_the_cause_is_known_before_the_job(name: str, codes: set[str]) -> None:
    assert {cause.code for cause in held_up(load(name).cluster)} == codes


def test_all_far_below_what_their_cards_report_is_no_health() -> None:
    """Nobody is slower than the others, so that the cards alone show it."""
    cluster = load("a-filter-left-at-100-mbit").cluster
    slow = [Burst(bytes=250_000, seconds=0.2, segments=200, retransmits=0)]
    reach = [
        replace(reach, peers=[replace(peer, bursts=slow) for peer in reach.peers])
        for reach in cluster.measurements.reach
    ]
    changed = replace(cluster, measurements=replace(cluster.measurements, reach=reach))
    (verdict,) = judge(changed, [rule for rule in all_rules() if rule.code == "NET008"])
    assert [finding.what for finding in verdict.findings if finding.state is State.WARN] == [
        "bursts of sw[1-3] carry at most 0.01 Gb/s, 0.1 % of the 10 that eth0 reports"
    ]


_CONNLIMIT = {"xt": {"type": "match", "name": "connlimit"}}
_COUNT = {"ct count": {"val": 2, "inv": True}}
_PORT = {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}}


@pytest.mark.parametrize(
    ("rule", "part"),
    [
        ([_CONNLIMIT, {"xt": {"type": "target", "name": "REJECT"}}], "connlimit reject"),
        ([_COUNT, {"drop": None}], "ct count over 2 drop"),
        ([_PORT, _COUNT, {"drop": None}], ""),
        ([{"drop": None}], ""),
    ],
)
def test_a_rule_that_stops_a_part_is_told_from_one_of_another_port(rule: list[Any], part: str) -> None:
    (packet_filter,) = parsed(_chain(*rule))  # type: ignore[misc]
    assert packet_filter.part == part


def test_a_set_that_a_rule_fills_is_shown_with_the_limit_of_its_entries() -> None:
    meter = {
        "set": {
            "op": "add",
            "elem": {"payload": {"protocol": "ip", "field": "saddr"}},
            "set": "@clients",
            "stmt": [{"ct count": {"val": 2, "inv": True}}],
        }
    }
    (chain,) = parsed(_chain(meter, {"reject": {"type": "tcp reset"}}))  # type: ignore[misc]
    assert "add @clients { ip saddr ct count over 2 } reject" in chain.part
