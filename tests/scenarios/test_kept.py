"""Ways that a host itself keeps closed: what its kernel says of them, and that the printed fix opens them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ncclcheck.probes.facts import Cluster, Connect, Filter, Network, PolicyRule, RefusingRoute, Unread, replace
from ncclcheck.probes.machine.net.filters import parsed
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.helpers.clusters import DENIED
from tests.helpers.reach_clusters import DROPPED, judged, pairs
from tests.helpers.reach_clusters import hosts as nodes_of
from tests.helpers.reach_hosts import Hosts, can_make_hosts, hosts

_CODES = ("NET003", "NET006", "NET007", "NET009")
_CHAIN = (
    "nft add table inet f && nft add chain inet f c '{ type filter hook %s priority 0; }' && "
    "nft add rule inet f c "
)
_OUT, _IN = _CHAIN % "output", _CHAIN % "input"
_RULE = PolicyRule(
    version=4, priority=100, selector="from all to 10.1.0.0/24", action="prohibit", destination="10.1.0.0/24"
)
_DROP = "tcp dport 1024-65535 drop"
_FILTER = Filter(family="inet", table="f", chain="c", hook="output", does=["drop"], rule=_DROP)
_REFUSED = Connect(outcome="not_sent", detail="Permission denied", kept="route")
_DROPPED = Connect(outcome="timed_out", detail="no answer", kept="filter")


def _bad(cluster: Cluster) -> list[Finding]:
    verdicts = judge(cluster, [rule for rule in all_rules() if rule.code in _CODES])
    return [
        finding
        for verdict in verdicts
        for finding in verdict.findings
        if finding.state in (State.FAIL, State.WARN)
    ]


@pytest.mark.parametrize(
    ("connect", "facts", "says", "fix"),
    [
        (_REFUSED, {"rules": [_RULE]}, "policy rule `from all to 10.1.0.0/24 prohibit`", "ip rule del pref 100"),
        (
            _REFUSED,
            {"refusing": [
                RefusingRoute(kind="blackhole", destination="10.0.0.0/8", table="main", metric=0),
                RefusingRoute(kind="prohibit", destination="10.1.0.1/32", table="7", metric=5),
            ]},
            "its route `prohibit 10.1.0.1/32 table 7 metric 5`",
            "ip route del prohibit 10.1.0.1/32 table 7 metric 5",
        ),
        (
            _DROPPED,
            {"rules": [replace(_RULE, selector=f"{_RULE.selector} ipproto tcp dport 1024-65534")]},
            "policy rule `from all to 10.1.0.0/24 ipproto tcp dport 1024-65534 prohibit` (priority 100)",
            "ip rule del pref 100",
        ),
        (_DROPPED, {"filters": [_FILTER]}, _DROP, "insert rule inet f c ip daddr 10.1.0.0/24"),
        (_DROPPED, {"filters": DENIED}, "its own packet filter drops what it sends, or", "nft list ruleset"),
        (replace(_DROPPED, kept="resources"), {}, "no port, file descriptor or memory", "ip_local_port_range"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("count", [2, 3])
def test_who_does_not_send_is_the_culprit(
    count: int, connect: Connect, facts: dict[str, object], says: str, fix: str
) -> None:
    """Its answers to the others do not leave it either; neither they nor the network are blamed."""
    nodes = nodes_of(count)
    assert isinstance(nodes[1].network, Network)
    nodes[1] = replace(nodes[1], network=replace(nodes[1].network, **facts))
    silent = Connect(outcome="timed_out", detail="no answer")

    def change(a: str, b: str) -> dict[str, object]:
        return {"connect": connect if a == "h2" else silent} if "h2" in (a, b) else {}

    (finding,) = judged("NET006", nodes, change).findings
    assert (finding.state, finding.where.node, finding.owner) == (State.FAIL, "h2", "node")
    assert "h2 itself does not send to" in finding.what
    assert says in finding.what
    assert fix in " ".join(line for remedy in finding.remedies for line in remedy.commands)


def test_what_another_node_says_of_its_rules_is_not_believed_by_the_shell() -> None:
    """Nor does it break the rule, whatever stands there."""
    nodes = nodes_of(2)
    selectors = ["", "from nowhere", "from all oif $(reboot)"]
    rules = [
        replace(_RULE, selector=selector, destination="10.1.0.0/24" if "oif" in selector else "x")
        for selector in selectors
    ]
    routes = [RefusingRoute(kind="prohibit", destination="x", table="7", metric=0)]
    assert isinstance(nodes[1].network, Network)
    nodes[1] = replace(nodes[1], network=replace(nodes[1].network, rules=rules, refusing=routes))
    (finding,) = judged("NET006", nodes, pairs("out", "h2", connect=_REFUSED)).findings
    assert finding.state is State.FAIL
    commands = [line for remedy in finding.remedies for line in remedy.commands]
    assert "ip rule del pref 100 from all oif '$(reboot)' prohibit" in commands


def test_of_two_the_one_with_a_filter_is_named() -> None:
    """Only where the filters of both could be read."""
    nodes = nodes_of(2)
    change = pairs("both", "h2", connect=DROPPED)
    for of_first, culprit in (([], "h2"), (DENIED, None), ([replace(_FILTER, hook="input")], None)):
        both = [(nodes[0], of_first), (nodes[1], [replace(_FILTER, hook="input")])]
        made = [replace(node, network=replace(node.network, filters=filters)) for node, filters in both]
        (finding,) = judged("NET006", made, change).findings
        assert finding.where.node == culprit


def test_another_sender_is_seen_by_the_peers() -> None:
    """Within one subnet a warning, with the chain that does it where it could be read."""
    nodes = nodes_of(3)
    assert isinstance(nodes[1].network, Network)
    chain = Filter(family="ip", table="n", chain="p", hook="postrouting", does=["masquerade"], rule="masquerade")
    nodes[1] = replace(nodes[1], network=replace(nodes[1].network, filters=[chain]))
    findings = judged("NET006", nodes, pairs("out", "h2", source="10.1.0.2", seen_as="10.1.0.99")).findings
    troubles = [finding for finding in findings if finding.state is not State.OK]
    assert [(finding.state, finding.where.node) for finding in troubles] == [(State.WARN, "h2")]
    assert "h[1,3] see what h2 sends from 10.1.0.2 as coming from 10.1.0.99" in troubles[0].what
    assert troubles[0].remedies[0].commands == ["nft insert rule ip n p ip daddr 10.1.0.0/24 accept"]


def test_filters_are_read() -> None:
    base = {"family": "inet", "table": "t", "type": "filter", "prio": 0}
    listed = [
        {"metainfo": {"version": "1.0.6"}},
        {"chain": {**base, "name": "in", "hook": "input", "policy": "drop"}},
        {"chain": {**base, "name": "out", "hook": "output", "policy": "accept"}},
        {"chain": {**base, "name": "through", "hook": "forward", "policy": "drop"}},
        {"chain": {"family": "inet", "table": "t", "name": "more"}},
        {"rule": {"family": "inet", "table": "t", "chain": "out", "expr": [{"jump": {"target": "more"}}]}},
        {"rule": {"family": "inet", "table": "t", "chain": "more", "expr": [
            {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}},
                       "right": {"range": [1024, 65535]}}},
            {"reject": {"type": "tcp reset"}},
        ]}},
    ]  # fmt: skip
    assert parsed(json.dumps({"nftables": listed})) == [
        Filter(family="inet", table="t", chain="in", hook="input", does=["drop"]),
        Filter(family="inet", table="t", chain="out", hook="output", does=["reject"],
               rule="tcp dport 1024-65535 reject"),
    ]  # fmt: skip


def _of_one_rule(*expr: object) -> str:
    chain = {"family": "ip", "table": "t", "name": "c", "hook": "input", "policy": "accept"}
    rule = {"family": "ip", "table": "t", "chain": "c", "expr": [*expr, {"drop": None}]}
    return json.dumps({"nftables": [{"chain": chain}, {"rule": rule}]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"nftables": [{"rule": 5}]}',
        '{"nftables": [{"chain": {}}, {"rule": {}}]}',
        _of_one_rule({"match": {"op": "==", "left": {}, "right": 1}}),
        _of_one_rule({"match": {"op": "==", "left": {"range": [1]}, "right": 1}}),
        _of_one_rule({"match": {"op": "==", "left": {"ct": 5}, "right": 1}}),
    ],
)
def test_another_form_is_no_filter(text: str) -> None:
    filters = parsed(text)
    assert isinstance(filters, Unread) or filters == []


def test_chains_that_jump_to_each_other_are_read_once() -> None:
    """Sixteen chains, each of which jumps four times to the next, are four thousand million ways."""
    names = [f"c{number}" for number in range(17)]
    chain = {"family": "ip", "table": "t", "name": "c0", "hook": "input", "policy": "accept"}
    jumps = [
        {"rule": {"family": "ip", "table": "t", "chain": name, "expr": [{"jump": {"target": to}}]}}
        for name, to in zip(names, [*names[1:], "c0"], strict=True)
        for _ in range(4)
    ]
    last = {"rule": {"family": "ip", "table": "t", "chain": "c16", "expr": [{"drop": None}]}}
    filters = parsed(json.dumps({"nftables": [{"chain": chain}, *jumps, last]}))
    assert not isinstance(filters, Unread)
    assert [(packet_filter.chain, packet_filter.does, packet_filter.rule) for packet_filter in filters] == [
        ("c0", ["drop"], "drop")
    ]


@pytest.fixture(params=[2, 3])
def lab(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    if not can_make_hosts():
        pytest.skip("network namespaces cannot be made here (root)")
    with hosts(request.param) as made:
        yield made


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("ip rule add to 10.77.0.0/24 prohibit pref 100", "its policy rule"),
        ("ip rule add to 10.77.0.11 blackhole pref 90", "its policy rule"),
        ("ip route add unreachable 10.77.0.11/32", "its route `unreachable 10.77.0.11/32`"),
        ("ip route add throw 10.77.0.11/32", "its route `throw 10.77.0.11/32`"),
        (_OUT + "oifname eth0 tcp dport 1024-65535 drop", "its own packet filter does not let it out"),
        (_OUT + "oifname eth0 drop", "its own packet filter does not let it out"),
        (_OUT + "oifname eth0 meta l4proto tcp reject", ""),
        (_IN + "iifname eth0 tcp dport 1024-65535 reject with tcp reset", ""),
        (_IN + "iifname eth0 drop", ""),
        (
            "ip addr add 10.77.0.99/32 dev eth0 && nft add table ip n && "
            "nft add chain ip n p '{ type nat hook postrouting priority 100; }' && "
            "nft add rule ip n p oifname eth0 snat to 10.77.0.99",
            "h2 itself writes another sender on it",
        ),
        (
            "nft add table ip n && nft add chain ip n o '{ type nat hook output priority -100; }' && "
            "nft add rule ip n o ip daddr 10.77.0.11 tcp dport 1024-65535 redirect to :22",
            "lead it elsewhere",
        ),
    ],
)
def test_named_and_fixed_by_what_is_printed(lab: Hosts, fault: str, says: str) -> None:
    lab.run("h2", "sh", "-c", fault)
    findings = _bad(lab.look())
    assert [finding.where.node for finding in findings] == ["h2"], [finding.what for finding in findings]
    assert says in findings[0].what
    fix = next(remedy for remedy in findings[0].remedies if remedy.who == "admin")
    for line in fix.commands:
        lab.run("h2", "sh", "-c", line)
    assert _bad(lab.look()) == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    "setup",
    [
        "ip route add blackhole 10.0.0.0/8; ip route add unreachable 192.168.0.0/16; "
        "ip rule add from 192.0.2.1 prohibit",
        _IN + "ct state established,related accept; nft add rule inet f c iifname lo accept; "
        "nft add rule inet f c ip saddr 10.77.0.0/24 accept; nft add rule inet f c drop",
        "nft add table ip n; nft add chain ip n p '{ type nat hook postrouting priority 100; }'; "
        "nft add rule ip n p ip daddr != 10.77.0.0/24 masquerade",
        "ip route add default via 10.77.0.11 table 77; ip rule add from 10.77.0.12 to 203.0.113.0/24 lookup 77",
    ],
)
def test_odd_but_sound_hosts_are_well(lab: Hosts, setup: str) -> None:
    lab.run("h2", "sh", "-c", setup)
    assert _bad(lab.look()) == []
