"""Packet filters that forget connections which are open and idle."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import Filter, Job, Network, Unread, replace
from ncclcheck.probes.machine.net import filters
from tests.helpers.clusters import LO, nic, node, verdict

CLOSED = Filter(family="inet", table="f", chain="i", hook="input", does=["drop"], stateful=True)
_TWO = Job(nodes_asked=2)


def _with(name: str, address: str, **changes: Any) -> Any:
    made = node(name, LO, nic("eth0", address))
    assert isinstance(made.network, Network)
    return replace(made, network=replace(made.network, **changes))


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"forgets_s": 3, "adopts": False}, "fail"),
        ({"forgets_s": 3, "adopts": True}, "warn"),
        ({"forgets_s": 300, "adopts": False}, "warn"),
        ({"forgets_s": 3600, "adopts": False}, "ok"),
        ({"forgets_s": Unread("absent", "no connection tracking")}, "ok"),
        ({"forgets_s": 3, "filters": []}, "skipped"),
        ({"forgets_s": 3, "filters": [replace(CLOSED, stateful=False)]}, "skipped"),
        ({"forgets_s": 3, "filters": [replace(CLOSED, does=["dnat"])]}, "skipped"),
        ({"forgets_s": 3, "filters": Unread("denied", "only root may read it")}, "skipped"),
    ],
)
def test_for_how_long_a_filter_knows_a_connection(changes: dict[str, Any], state: str) -> None:
    machine = _with("a", "10.1.0.1/24", **{"filters": [CLOSED], **changes})
    judgement = verdict("NET020", machine, _with("b", "10.1.0.2/24", filters=[]), job=_TWO)
    assert judgement.state.value == state
    if state in ("fail", "warn"):
        (finding,) = judgement.findings
        assert finding.where.node == "a"
        lines = [line for fix in finding.remedies for line in fix.commands]
        assert lines[0].startswith("sysctl -w net.netfilter.nf_conntrack_tcp_timeout_established=")
        assert "nft insert rule inet f i ip saddr 10.1.0.0/24 accept" in lines


def test_a_node_alone_has_no_connections_to_others() -> None:
    assert verdict("NET020", _with("a", "10.1.0.1/24", filters=[CLOSED], forgets_s=3)).state.value == "skipped"


_MATCH = '{"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}}'
_CHAIN = '{"chain": {"family": "inet", "table": "f", "name": "%s"%s}}'
_RULE = '{"rule": {"family": "inet", "table": "f", "chain": "%s", "expr": [%s]}}'
_HOOK = ', "hook": "input", "policy": "drop", "type": "filter", "prio": 0'


@pytest.mark.parametrize(
    ("rules", "stateful"),
    [
        ([_RULE % ("i", _MATCH + ', {"accept": null}')], True),
        ([_RULE % ("i", '{"jump": {"target": "j"}}'), _RULE % ("j", _MATCH + ', {"accept": null}')], True),
        ([_RULE % ("i", '{"jump": {"target": "i"}}')], False),
        ([_RULE % ("i", _MATCH + ', {"drop": null}')], False),
        ([], False),
    ],
)
def test_which_chains_ask_for_states(rules: list[str], stateful: bool) -> None:
    listed = ", ".join([_CHAIN % ("i", _HOOK), _CHAIN % ("j", ""), *rules])
    text = f'{{"nftables": [{listed}]}}'
    read = filters.parsed(text)
    assert not isinstance(read, Unread)
    (chain,) = read
    assert isinstance(chain, Filter)
    assert chain.stateful == stateful
