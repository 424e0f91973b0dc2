"""A node that sends by another device, or cannot: its own kernel's words are the cause, and come first."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    ByName,
    Connect,
    Dialled,
    Filter,
    Hop,
    Job,
    JobEnd,
    KernelRoute,
    Knock,
    Look,
    Measurements,
    Meeting,
    Network,
    Node,
    PairTime,
    PathMtu,
    PolicyRule,
    RankState,
    Run,
    Silence,
    Stack,
    System,
    Volley,
    replace,
)
from ncclcheck.reports.judgement.findings import Finding, State
from tests.helpers.clusters import LO, nic, node, route, states_of, verdict
from tests.helpers.reach_clusters import CUT, DROPPED, SLOW, Change, hosts, judged, measured, pairs

MGMT = nic("mgmt0", "10.2.0.2/24")
RULE = PolicyRule(priority=50, version=4, action="lookup 100", destination="10.1.0.1/32", selector="to it")


def _of(a: str, b: str, **facts: Any) -> Change:
    return lambda end, other: facts if (end, other) == (a, b) else {}


def _by_table_100(**more: Any) -> Change:
    hop = Hop(interface="mgmt0", address="10.1.0.1", state="reachable")
    way = KernelRoute(address="10.1.0.1", kind="unicast", destination="0.0.0.0/0", table="100", hops=[hop])
    return _of("h2", "h1", **{"interface": "mgmt0", "way": way, **more})


def _with_a_rule() -> list[Node]:
    nodes = hosts(3)
    cards = node("h2", LO, nic("eth0", "10.1.0.2/24"), MGMT)
    assert isinstance(cards.network, Network)
    nodes[1] = replace(cards, network=replace(cards.network, rules=[RULE]))
    return nodes


def test_a_way_by_a_policy_rule_is_a_detour_though_all_connections_pass() -> None:
    judgement = judged("NET003", _with_a_rule(), _by_table_100())
    assert states_of(judgement)[0] == ("warn", "h2")
    assert "h2 sends to h1 by mgmt0" in judgement.findings[0].what
    assert "to it lookup 100" in judgement.findings[0].what
    assert judgement.findings[0].remedies[0].commands == ["ip rule del pref 50   # on h2"]


def test_a_rule_that_leads_to_the_chosen_device_is_none() -> None:
    hop = Hop(interface="eth0", address="10.1.0.1", state="reachable")
    way = KernelRoute(address="10.1.0.1", kind="unicast", destination="10.1.0.0/24", table="100", hops=[hop])
    assert judged("NET003", hosts(3), _of("h2", "h1", way=way)).state is State.OK


TUNNEL = [route("10.1.0.3/32", "vx0", "10.99.0.3")]


def _through_a_tunnel(a: str, b: str) -> dict[str, Any]:
    if {a, b} != {"h2", "h3"}:
        return {}
    facts: dict[str, Any] = {"path_mtu": PathMtu(sent=1500, arrived=1400, told=1450)}
    return facts | ({"interface": "vx0"} if a == "h2" else {})


def _tunnelled(h2_to_h3: float = 0.01) -> tuple[Measurements, list[Node]]:
    nodes = hosts(3)
    h2 = node("h2", LO, nic("eth0", "10.1.0.2/24"), nic("vx0", "10.99.0.2/24", kind="tunnel"), routes=TUNNEL)
    nodes[1] = h2
    rates = {("h1", "h2"): 2.0, ("h1", "h3"): 1.5, ("h2", "h3"): h2_to_h3}
    pairs = [PairTime(a=a, b=b, bytes=2**20, a_to_b_gb_s=r, b_to_a_gb_s=2.0, latency_us=100.0)
             for (a, b), r in rates.items()]  # fmt: skip
    measurements = measured(nodes, _through_a_tunnel)
    for reach in measurements.reach:
        reach.peers[:] = [replace(peer, bursts=[]) if peer.interface == "vx0" else peer for peer in reach.peers]
    return replace(measurements, pairs=pairs), nodes


def test_a_tunnel_that_sends_under_the_cards_address_is_named_with_what_the_job_carried() -> None:
    measurements, nodes = _tunnelled()
    judgement = judged("NET003", nodes, measurements=measurements)
    assert states_of(judgement)[0] == ("fail", "h2")
    assert "by vx0, not by the chosen eth0" in judgement.findings[0].what
    assert "carries 0.08 Gb/s in the job, where other pairs carry 16" in judgement.findings[0].what
    assert judged("NET007", nodes, measurements=measurements).state is State.OK


def test_a_tunnel_as_fast_as_the_rest_is_a_warning() -> None:
    measurements, nodes = _tunnelled(h2_to_h3=1.8)
    assert judged("NET003", nodes, measurements=measurements).state is State.WARN


def test_a_card_that_asks_for_no_mac_address_is_named() -> None:
    def without_arp(a: str, b: str) -> dict[str, Any]:
        if "h2" not in (a, b):
            return {}
        hop = Hop(interface="eth0", address="10.1.0.1", state="noarp")
        way = KernelRoute(
            address="10.1.0.1", kind="unicast", source="10.1.0.2", destination="10.1.0.0/24", hops=[hop]
        )
        return {**CUT, **({"way": way} if a == "h2" else {})}

    judgement = judged("NET006", hosts(3), without_arp)
    assert states_of(judgement)[0] == ("fail", "h2")
    assert "eth0 has ARP turned off" in judgement.findings[0].what
    assert judgement.findings[0].remedies[0].commands == ["ip link set dev eth0 arp on   # on h2"]


@pytest.mark.parametrize("outcome", ["unreachable", "not_sent"])
def test_the_name_of_a_peer_leads_to_ipv6_that_is_off_here(outcome: Any) -> None:
    nodes = hosts(2)
    nodes[1] = node("h2", LO, nic("eth0", "10.1.0.2/24", ipv6_off=True))
    unreachable = Connect(outcome=outcome, detail="Cannot assign requested address")
    change = _of("h2", "h1", by_name=ByName(address="fd00::1", connect=unreachable))
    judgement = judged("NET006", nodes, change, job=Job(nodes_asked=2, backend="gloo"))
    assert states_of(judgement)[0] == ("fail", "h2")
    assert "IPv6 is turned off on eth0" in judgement.findings[0].what
    assert "sysctl -w net.ipv6.conf.all.disable_ipv6=0" in judgement.findings[0].remedies[1].commands[0]


# After a job that failed


def _after(change: Change, filters: list[Filter] | None = None) -> tuple[list[Node], Measurements]:
    nodes = hosts(3)
    before, after = measured(nodes), measured(nodes, change)
    if filters:
        after.reach[1] = replace(after.reach[1], filters=filters)
    return nodes, replace(before, reach_after=after.reach)


def test_a_route_that_was_removed_in_mid_run_is_named_by_the_kernel_that_lost_it() -> None:
    unreachable = Connect(outcome="unreachable", detail="Network is unreachable", kept="route")

    def lost(a: str, b: str) -> dict[str, Any]:
        way = KernelRoute(address=f"10.1.0.{b[1]}", error="Network is unreachable")
        own = {"connect": unreachable, "way": way} if a == "h2" else {}
        return {**CUT, **own} if "h2" in (a, b) else {}

    nodes, measurements = _after(lost)
    judgement = judged("NET006", nodes, measurements=measurements)
    assert states_of(judgement) == [("fail", "h2")]
    assert "the routing table has no route to 10.1.0.0/24. It passed before the job" in judgement.findings[0].what
    assert (
        judgement.findings[0].remedies[0].commands[0] == "ip route add 10.1.0.0/24 dev eth0 src 10.1.0.2   # on h2"
    )


def test_a_filter_that_came_in_mid_run_is_read_again_and_opened() -> None:
    chain = Filter(family="inet", table="fw", chain="i", hook="input", does=["drop"])
    nodes, measurements = _after(lambda a, b: CUT if "h2" in (a, b) else {}, [chain])
    judgement = judged("NET006", nodes, measurements=measurements)
    assert states_of(judgement) == [("fail", "h2")]
    assert "chain inet fw i (hook input), whose policy is drop" in " ".join(
        e.value for e in judgement.findings[0].evidence
    )
    assert "nft insert rule inet fw i ip saddr 10.1.0.0/24 accept" in judgement.findings[0].remedies[1].commands


# Connections opened at once


def _late(_: str, b: str) -> dict[str, Any]:
    return {"volley": Volley(opened=8, late=6)} if b == "h2" else {"volley": Volley(opened=8, late=0)}


def test_a_short_queue_of_listeners_explains_late_connections() -> None:
    nodes = hosts(3)
    nodes[1] = replace(nodes[1], system=System(somaxconn=1))
    judgement = judged("NET006", nodes, _late)
    (late,) = [finding for finding in judgement.findings if finding.state is State.WARN]
    assert "net.core.somaxconn = 1" in late.what
    assert late.remedies[0].commands == ["sysctl -w net.core.somaxconn=4096   # on h2"]


def test_an_own_limit_explains_late_connections_and_is_passed_by() -> None:
    rule = "& syn limit rate over 2 packets/second drop"
    chain = Filter(family="inet", table="sf", chain="i", hook="input", does=["drop"], rule=rule, part=rule)
    nodes = hosts(3)
    assert isinstance(nodes[1].network, Network)
    nodes[1] = replace(nodes[1], network=replace(nodes[1].network, filters=[chain]), system=System(somaxconn=4096))
    judgement = judged("NET006", nodes, _late)
    (late,) = [finding for finding in judgement.findings if finding.state is State.WARN]
    assert "a rule of its own packet filter limits new connections" in late.what
    assert late.remedies[0].commands == ["nft insert rule inet sf i ip saddr 10.1.0.0/24 accept"]


@pytest.mark.parametrize(("passed", "accused"), [(60_000, True), (200, False)])
def test_thousands_of_rules_explain_a_slow_node(passed: int, accused: bool) -> None:
    chain = Filter(family="inet", table="f2b", chain="i", hook="input", does=["drop"], rule="drop", passed=passed)
    nodes = hosts(3)
    assert isinstance(nodes[1].network, Network)
    nodes[1] = replace(nodes[1], network=replace(nodes[1].network, filters=[chain]))
    findings = judged("NET008", nodes, lambda a, b: {"bursts": [SLOW]} if "h2" in (a, b) else {}).findings
    assert {finding.where.node for finding in findings} == {"h2"}
    assert all(
        ("compares each packet with at least 60,000 rules" in finding.what) == accused for finding in findings
    )


@pytest.mark.parametrize(("own", "accused"), [("refused", True), ("ok", False)])
def test_a_preloaded_library_that_alone_refuses_all_connections_is_named_and_no_firewall(
    own: Any, accused: bool
) -> None:
    refused = Connect(outcome="refused", detail="Connection refused")
    nodes = hosts(3)
    nodes[2] = node("h3", LO, nic("eth0", "10.1.0.3/24"), env={"LD_PRELOAD": "/opt/libproxychains.so.4"})
    change = pairs("out", "h3", connect=refused)
    of_h3 = replace(measured(nodes, change).reach[2], own=Connect(outcome=own))
    tried = measured(nodes, change, h3=of_h3)
    findings = [
        finding for finding in judged("NET006", nodes, measurements=tried).findings if finding.state is State.FAIL
    ]
    alike = [replace(machine, stack=Stack(executable="/usr/bin/python3", python="3.11.7")) for machine in nodes]
    assert judged("VER013", alike, measurements=tried).state is (State.OK if accused else State.WARN)
    assert {finding.where.node for finding in findings} == {"h3"}
    assert findings[0].what.startswith("LD_PRELOAD=/opt/libproxychains.so.4, which no other node has") == accused
    if accused:
        assert [remedy.commands[0] for remedy in findings[0].remedies] == ["unset LD_PRELOAD   # on h3"]
        assert len(findings) == 1


@pytest.mark.parametrize(("network", "accused"), [("10.1.0.12/24", True), ("10.2.0.2/24", False)])
def test_two_cards_in_one_subnet_explain_that_nobody_comes_in(network: str, accused: bool) -> None:
    nodes = hosts(3)
    nodes[1] = node("h2", LO, nic("eth0", "10.1.0.2/24"), nic("eth1", network))
    (finding,) = judged("NET006", nodes, pairs("in", "h2", connect=DROPPED)).findings
    assert (finding.state.value, finding.where.node) == ("fail", "h2")
    assert ("rp_filter=1" in finding.what) == accused
    nodes[1] = node("h2", LO, nic("eth0", "10.1.0.2/24", rp_filter=1), nic("eth1", network))
    (read,) = judged("NET006", nodes, pairs("in", "h2", connect=DROPPED)).findings
    assert ("(rp_filter is 1) drops" in read.what) == accused
    assert accused == any(evidence.source == "rp_filter of eth0 on h2" for evidence in read.evidence)
    assert accused == any("net.ipv4.conf.all.rp_filter=2" in str(remedy.commands) for remedy in finding.remedies)


# Ends without a word


def test_a_torchrun_that_alone_ended_without_a_word_is_the_cause() -> None:
    ranks = [RankState(rank=i, node=f"h{i + 1}", local_rank=0, pid=9, phase="start", last_step="import torch",
                       since_s=9.0, proc_state="R") for i in (0, 2)]  # fmt: skip
    ends = [JobEnd(node="h1", exit=None), JobEnd(node="h2", exit=1), JobEnd(node="h3", exit=None)]
    run = Run(ranks=ranks, ends=ends, started_job=True, stopped_by="early end")
    judgement = verdict("RUN002", *hosts(3), job=Job(nodes_asked=3, ranks=3), run=run, command="bench")
    assert states_of(judgement) == [("fail", "h2")]
    assert "ended before its ranks had joined, with status 1 and no word" in judgement.findings[0].what
    cleaned = JobEnd(node="h2", exit=1, detail="ncclcheck: /tmp/ncclcheck-x/job1 was removed while the job ran")
    gone = replace(run, ends=[cleaned])
    judgement = verdict("RUN002", *hosts(3), job=Job(nodes_asked=3, ranks=3), run=gone, command="bench")
    assert "empties the temporary directory of running jobs" in judgement.findings[0].what


# Settings of ssh on the caller's side


def _silent(detail: str, *dialled: Dialled) -> Finding:
    silence = Silence(node="h2", via="ssh", exit=255, detail=detail, since_s=1.0, last_step="")
    run = Run(silent=[silence], dialled=list(dialled))
    nodes = [host for host in hosts(3) if host.name != "h2"]
    (finding,) = verdict("RUN001", *nodes, job=Job(nodes_asked=3, launcher="ssh"), run=run).findings
    return finding


def _lost_in_mid_run(port: Any, *, by_job: bool = True) -> Finding:
    knocks = [
        Knock(of="h2", by=asker, address="10.1.0.2", answered=by_job, detail="refused") for asker in ("h1", "h3")
    ]
    silence = Silence(node="h2", via="ssh", exit=255, since_s=20.0, step_s=30.0, last_step="start torchrun",
                      look=Look(came="no"), knocks=knocks)  # fmt: skip
    nodes = [node(f"h{i}", LO, nic("eth0", f"10.1.0.{i}/24"), nic("mgmt0", f"10.9.0.{i}/24")) for i in (1, 2, 3)]
    to = Dialled(node="h2", host="10.9.0.2", addresses=["10.9.0.2"], port=2222, port_now=port)
    run = Run(silent=[silence], dialled=[to], started_job=True)
    (finding,) = verdict("RUN001", *nodes, job=Job(nodes_asked=3, launcher="ssh"), run=run).findings
    return finding


def test_a_lost_network_of_ssh_is_told_from_a_lost_node() -> None:
    finding = _lost_in_mid_run("no answer")
    assert finding.what.startswith(
        "the network by which ssh goes to it is lost (10.9.0.2, its mgmt0: no answer at port"
    )
    assert "it still answers on the job's network (10.1.0.2)" in finding.what
    assert any("ssh -o HostName=10.1.0.2" in line for remedy in finding.remedies for line in remedy.commands)


def test_a_machine_that_stands_still_is_told_from_a_lost_network() -> None:
    assert _lost_in_mid_run("open").what.startswith("the machine stands still: its kernel answers")


@pytest.mark.parametrize(("port", "by_job"), [("", True), ("refused", True), ("no answer", False)])
def test_what_does_not_tell_them_apart_names_neither(port: str, by_job: bool) -> None:
    what = _lost_in_mid_run(port, by_job=by_job).what
    assert "stands still" not in what
    assert "network by which ssh" not in what


@pytest.mark.parametrize(
    ("ssh", "words"),
    [
        ("Cannot execute command-line and remote command.", "have a RemoteCommand for it"),
        ("bind 10.1.2.3: Cannot assign requested address", "start from 10.1.2.3 (BindAddress)"),
        ("/etc/ssh/ssh_config: line 2: Bad configuration option: serveraliv", "option: serveraliv"),
        ("ssh: Could not resolve hostname 10.1.0.2: Address family for hostname not supported", "(AddressFamily)"),
    ],
)
def test_what_ssh_says_of_its_own_settings_is_the_cause(ssh: str, words: str) -> None:
    assert words in _silent(ssh).what


def test_options_of_ssh_for_one_host_alone_are_named() -> None:
    own = Dialled(node="h2", host="h2", own=["ciphers 3des-cbc"])
    finding = _silent("Unable to negotiate with 10.1.0.2 port 22: no matching cipher found.", own,
                    Dialled(node="h1", host="h1"))  # fmt: skip
    assert finding.what.startswith("ssh's own settings lead it with ciphers 3des-cbc")


def test_a_program_of_proxycommand_that_is_not_there_is_named() -> None:
    own = Dialled(node="h2", host="h2", by="ProxyCommand corkscrew, which is not installed here")
    finding = _silent("kex_exchange_identification: Connection closed by remote host", own)
    assert "corkscrew, which is not installed here: it ended before any sshd had answered" in finding.what


# torchrun's variables


def test_ranks_of_a_node_in_a_variable_that_the_others_do_not_set_are_a_leftover() -> None:
    nodes = [node(f"h{i}", LO, nic("eth0", f"10.1.0.{i}/24"), env=env, stack=Stack(executable="/usr/bin/python3"))
             for i, env in ((1, {}), (2, {"PET_NPROC_PER_NODE": "8"}), (3, {}))]  # fmt: skip
    assert states_of(verdict("VER013", *nodes))[0] == ("warn", "h2")
    both = [node(f"h{i}", LO, nic("eth0", f"10.1.0.{i}/24"), env={"PET_NPROC_PER_NODE": str(4 * i)},
                 stack=Stack(executable="/usr/bin/python3")) for i in (1, 2)]  # fmt: skip
    assert verdict("VER013", *both).state is State.OK


# A prefix length that is wrong on one wire: whose it is decides who answers there


def _prefixes(*lengths: int) -> list[Node]:
    return [node(f"h{i}", LO, nic("eth0", f"10.1.0.{11 * i}/{length}")) for i, length in enumerate(lengths, 1)]


def _narrow(nodes: list[Node], *, on_one_wire: bool) -> Measurements:
    """Nothing passes; those of /28 have no route, the one of /24 asks on its wire."""
    narrow = [machine.name for machine in nodes if machine.network.interfaces[1].addresses[0].prefix == 28]  # type: ignore[union-attr, index]

    def change(a: str, b: str) -> dict[str, Any]:
        address = f"10.1.0.{11 * int(b[1])}"
        hop = Hop(interface="eth0", address=address, state="reachable" if on_one_wire else "failed")
        asks = KernelRoute(address=address, kind="unicast", destination="10.1.0.0/24", hops=[hop])
        return {
            **CUT,
            "way": KernelRoute(address=address, error="Network is unreachable") if a in narrow else asks,
        }

    return measured(nodes, change)


@pytest.mark.parametrize(
    ("lengths", "wrong"), [((28, 24), ["h1"]), ((24, 28), ["h2"]), ((28, 28, 24), ["h1", "h2"])]
)
def test_the_narrow_prefix_is_wrong_where_its_machine_answers_on_the_wire(
    lengths: tuple[int, ...], wrong: list[str]
) -> None:
    nodes = _prefixes(*lengths)
    meeting = Meeting(endpoint="10.1.0.11:29500", told_by="", outcome="open", node_rank=0, addresses=["10.1.0.11"])
    job = Job(nodes_asked=len(nodes), meeting=meeting)
    judgement = judged("NET003", nodes, job=job, measurements=_narrow(nodes, on_one_wire=True))
    assert states_of(judgement) == [("fail", name) for name in wrong]
    lines = [line for finding in judgement.findings for remedy in finding.remedies for line in remedy.commands]
    assert [line for line in lines if "addr add" in line] == [
        f"ip addr add {at}/24 dev eth0 && ip addr del {at}/28 dev eth0   # on {name}"
        for name in wrong
        for at in [f"10.1.0.{11 * int(name[1])}"]
    ]


def test_no_prefix_is_changed_where_nobody_answers_on_the_wire() -> None:
    nodes = _prefixes(28, 24)
    judgement = judged("NET003", nodes, measurements=_narrow(nodes, on_one_wire=False))
    assert judgement.state is State.FAIL
    assert not [
        line
        for finding in judgement.findings
        for r in finding.remedies
        for line in r.commands
        if "addr add" in line
    ]


def test_the_one_filter_that_can_stop_it_stands_in_the_heading() -> None:
    chain = Filter(family="inet", table="fw", chain="i", hook="input", does=["drop"])
    nodes, measurements = _after(lambda a, b: CUT if "h2" in (a, b) else {}, [chain])
    unfiltered = [replace(machine, network=replace(machine.network, filters=[])) for machine in nodes]
    (finding,) = judged("NET006", unfiltered, measurements=measurements).findings
    assert "nothing passes: h2's own packet filter can stop it (chain inet fw i (hook input)" in finding.what
