"""Rules about the network: the choice on one node, and agreement between nodes."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import Gpus, Host, Interface, Job, Library, Nccl, Network, Node, Resolution
from tests.helpers.clusters import DENIED, LO, nic, node, route, states_of, verdict

DOCKER = nic("docker0", "172.17.0.1/16", kind="bridge", members=["veth1"])
BRIDGED = nic("br0", "10.1.0.1/24", kind="bridge", members=["eth0"])
A = node("a", LO, nic("eth0", "10.1.0.1/24"))
B = node("b", LO, nic("eth0", "10.1.0.2/24"))
C = node("c", LO, nic("eth0", "10.1.0.3/24"))
AWAY = node("d", LO, nic("eth0", "10.2.0.4/24"))


def test_the_chosen_interface_is_told_with_its_reason() -> None:
    judgement = verdict("NET001", A)
    assert judgement.state.value == "ok"
    assert judgement.findings[0].what == "NCCL would use eth0 (10.1.0.1)"
    assert judgement.findings[0].evidence[0].source == "chosen because"


@pytest.mark.parametrize(
    ("env", "version", "state"),
    [
        ({"NCCL_SOCKET_IFNAME": "ens9"}, "2.27.7", "fail"),
        ({"NCCL_SOCKET_IFNAME": "eth0"}, "2.27.7", "fail"),  # down, and this version does not look
        ({"NCCL_SOCKET_IFNAME": "eth0"}, "2.28.3", "fail"),  # down, so that there is none
        ({}, "2.28.3", "ok"),
    ],
)
def test_an_interface_that_is_missing_or_down(env: dict[str, str], version: str, state: str) -> None:
    nccl = Nccl(loaded=Library(path="/x", origin="torch", version=version))
    machine = node(
        "a", LO, nic("eth0", "10.1.0.1/24", running=False), nic("eth1", "10.3.0.1/24"), env=env, nccl=nccl
    )
    assert verdict("NET001", machine).state.value == state


def test_no_interface_at_all() -> None:
    assert states_of(verdict("NET001", node("a"))) == [("fail", "a")]


@pytest.mark.parametrize(
    ("interfaces", "env", "states"),
    [
        ([LO, nic("eth0", "10.1.0.1/24"), DOCKER], {}, []),
        ([LO, nic("eth0", "10.1.0.1/24"), DOCKER], {"NCCL_SOCKET_IFNAME": "docker0"}, ["fail"]),
        ([LO, nic("eth0", "10.1.0.1/24"), DOCKER], {"GLOO_SOCKET_IFNAME": "docker0"}, ["fail"]),
        ([LO, nic("eth0", "10.1.0.1/24")], {"NCCL_SOCKET_IFNAME": "lo"}, ["fail"]),
        ([LO, nic("eth0", "10.1.0.1/24"), nic("br-1f", "172.18.0.1/16", kind="bridge", members=[])], {}, ["warn"]),
        ([LO, BRIDGED, nic("eth0"), nic("eth1", "10.3.0.1/24")], {}, []),
        ([LO, nic("eth0", "10.244.1.5/24", kind="veth")], {}, []),
        ([LO], {}, []),
    ],
)  # fmt: skip
def test_a_better_interface(interfaces: list[Interface], env: dict[str, str], states: list[str]) -> None:
    judgement = verdict("NET002", node("a", *interfaces, env=env), B)
    assert states_of(judgement) == [(state, "a") for state in states]


def test_loopback_is_enough_for_one_node() -> None:
    machine = node("a", LO, nic("eth0", "10.1.0.1/24"), env={"NCCL_SOCKET_IFNAME": "lo"})
    assert verdict("NET002", machine).state.value == "note"


def test_one_subnet() -> None:
    judgement = verdict("NET003", A, B)
    assert judgement.state.value == "ok"
    assert judgement.findings[0].what == "all 2 nodes are in 10.1.0.0/24"


def test_the_odd_one_out_of_the_subnet() -> None:
    judgement = verdict("NET003", A, B, C, AWAY)
    assert states_of(judgement) == [("fail", "d")]
    assert "no majority" not in judgement.findings[0].what
    assert "10.1.0.0/24 (a, b, c)" in judgement.findings[0].what


def test_two_against_two_is_said_as_such() -> None:
    judgement = verdict("NET003", A, B, AWAY, node("e", LO, nic("eth0", "10.2.0.5/24")))
    assert states_of(judgement) == [("fail", "d"), ("fail", "e")]
    assert "2 against 2: nothing here shows which side is the wrong one" in judgement.findings[0].what


def test_only_the_way_back_is_missing() -> None:
    routed = node("d", LO, nic("eth0", "10.2.0.4/24"), routes=[route("0.0.0.0/0", "eth0", "10.2.0.254")])
    assert states_of(verdict("NET003", A, B, C, routed))[:3] == [("fail", "a"), ("fail", "b"), ("fail", "c")]


@pytest.mark.parametrize(
    ("routes", "state"),
    [
        ([route("0.0.0.0/0", "eth0", "10.9.9.254")], "note"),
        ([route("0.0.0.0/0", "mgmt0", "192.168.0.1")], "warn"),
        ([route("0.0.0.0/0", "mgmt0", "192.168.0.1"), route("10.0.0.0/8", "eth0", "10.9.9.254")], "note"),
        ([route("0.0.0.0/0", "mgmt0", "x", 100), route("0.0.0.0/0", "eth0", "y", 50)], "note"),
        ([route("10.0.0.0/8", "eth0")], "ok"),
        ([], "fail"),
        (DENIED, "unknown"),
    ],
)
def test_routes_between_subnets(routes: Any, state: str) -> None:
    pair = [node(n, LO, nic("eth0", f"10.{i}.0.1/24"), routes=routes) for i, n in enumerate("ab")]
    assert verdict("NET003", *pair).state.value == state


def test_loopback_reaches_no_other_node() -> None:
    assert states_of(verdict("NET003", A, node("b", LO))) == [("fail", "b")]


def test_many_racks_are_one_note() -> None:
    gateway = [route("0.0.0.0/0", "eth0", "10.0.0.254")]
    many = [node(f"n{i}", nic("eth0", f"10.{i // 250}.{i % 250}.1/24"), routes=gateway) for i in range(600)]
    assert states_of(verdict("NET003", *many)) == [("note", None)]


@pytest.mark.parametrize(
    ("mtus", "odd"), [((9000, 9000, 9000), []), ((9000, 9000, 1500), ["c"]), ((9000, 1500), [None])]
)
def test_mtu(mtus: tuple[int, ...], odd: list[str | None]) -> None:
    nodes = [
        node(name, LO, nic("eth0", f"10.1.0.{mtu % 7}/24", mtu=mtu))
        for name, mtu in zip("abc", mtus, strict=False)
    ]
    judged = verdict("NET004", *nodes)
    assert [f.where.node for f in judged.findings if f.state.value == "warn"] == odd
    assert judged.state.value == ("warn" if odd else "ok")


def test_mtu_unread() -> None:
    assert states_of(verdict("NET004", A, node("b", LO, nic("eth0", "10.1.0.2/24", mtu=DENIED)))) == [
        ("unknown", "b")
    ]


@pytest.mark.parametrize(
    ("own", "env", "job", "state"),
    [
        ("", {}, "", "ok"),
        ("127.0.1.1", {}, "gloo", "fail"),
        ("127.0.1.1", {}, "", "fail"),
        ("127.0.1.1", {}, "nccl", "warn"),
        ("127.0.1.1", {"GLOO_SOCKET_IFNAME": "eth0"}, "gloo", "warn"),
        ("192.168.5.1", {}, "gloo", "warn"),
        ("8.8.8.8", {}, "gloo", "fail"),  # an address of no interface: gloo falls back to loopback
    ],
)
def test_own_name_and_network(own: str, env: dict[str, str], job: str, state: str) -> None:
    mgmt = nic("mgmt0", "192.168.5.1/24")
    env = {"NCCL_SOCKET_IFNAME": "=eth0", **env}
    machine = node("a", LO, nic("eth0", "10.1.0.1/24"), mgmt, env=env, own=own)
    judgement = verdict("NET005", machine, B, job=Job(nodes_asked=2, backend=job))
    assert judgement.state.value == state


def _named(name: str, last: int, own: str, **env: str) -> Node:
    """A node with the job's network and one of management, whose name leads to an address of one of them."""
    return node(name, LO, nic("eth0", f"10.1.0.{last}/24"), nic("mgmt0", f"192.168.5.{last}/24"), env=env, own=own)


def test_a_name_that_alone_leads_to_the_network_of_management_is_told() -> None:
    sound = [_named(name, last, f"10.1.0.{last}") for name, last in (("a", 1), ("b", 2))]
    odd = _named("c", 3, "192.168.5.3")
    judgement = verdict("NET005", *sound, odd, job=Job(nodes_asked=3, backend="gloo"))
    assert states_of(judgement) == [("warn", "c")]
    assert (
        "leads to 192.168.5.3 (mgmt0), the names of all other nodes to 10.1.0.0/24" in judgement.findings[0].what
    )
    assert "export GLOO_SOCKET_IFNAME=eth0" in judgement.findings[0].remedies[0].commands
    assert verdict("NET005", sound[0], odd, job=Job(nodes_asked=2, backend="gloo")).state.value == "ok"
    set_ = _named("c", 3, "192.168.5.3", GLOO_SOCKET_IFNAME="eth0")
    judged = verdict("NET005", *sound, set_, job=Job(nodes_asked=3, backend="gloo"))
    assert not [finding for finding in judged.findings
                if "of all other nodes" in finding.what]  # fmt: skip


def test_a_setting_that_names_a_bridge_of_every_host_is_the_cause() -> None:
    docker = nic("docker0", "172.17.0.1/16", kind="bridge")
    nodes = [node(name, LO, nic("eth0", f"10.1.0.{i}/24"), docker, env={"NCCL_SOCKET_IFNAME": "docker0"},
                  own=f"10.1.0.{i}") for i, name in enumerate("abc", 1)]  # fmt: skip
    (finding,) = verdict("NET010", *nodes, job=Job(nodes_asked=3, backend="gloo")).findings
    assert "docker0 is a bridge that every host has for itself" in finding.what
    assert "NCCL_SOCKET_IFNAME=docker0 sends the job there" in finding.what
    assert not [
        finding
        for finding in verdict("NET005", *nodes, job=Job(nodes_asked=3, backend="gloo")).findings
        if finding.state.value != "ok"
    ]


def test_own_name_of_a_gpu_node_is_a_warning_while_the_backend_is_open() -> None:
    machine = node("a", LO, nic("eth0", "10.1.0.1/24"), own="127.0.1.1", gpus=Gpus(usable=8))
    assert verdict("NET005", machine, B).state.value == "warn"


@pytest.mark.parametrize(
    ("speeds", "state"),
    [((100000, 100000, 25000), "warn"), ((100000, 100000, 100000), "ok"), ((100000,), "skipped"), ((), "skipped")],
)
def test_link_speed(speeds: tuple[int, ...], state: str) -> None:
    nodes = [node(f"n{i}", LO, nic("eth0", f"10.1.0.{i}/24", speed_mbit=s)) for i, s in enumerate(speeds)]
    assert verdict("NET008", *nodes, A, B).state.value == state


def test_link_speed_unread() -> None:
    unread = node("b", LO, nic("eth0", "10.1.0.2/24", speed_mbit=DENIED))
    assert states_of(verdict("NET008", A, unread)) == [("unknown", "b")]


def test_addresses_and_names_are_unique() -> None:
    with_docker = [node(n, LO, nic("eth0", f"10.1.0.{i}/24"), DOCKER) for i, n in enumerate("ab")]
    assert verdict("NET010", *with_docker).state.value == "ok"


def test_the_same_address_twice() -> None:
    judgement = verdict("NET010", A, node("b", LO, nic("eth0", "10.1.0.1/24")))
    assert states_of(judgement) == [("fail", "a")]
    assert judgement.findings[0].where.peer == "b"
    spare = [nic("eth1", "192.168.0.1/24")]
    pair = [
        node(n, LO, nic("eth0", f"10.1.0.{i}/24"), *spare, env={"NCCL_SOCKET_IFNAME": "=eth0"})
        for i, n in enumerate("ab")
    ]
    assert verdict("NET010", *pair).state.value == "warn"


@pytest.mark.parametrize(("boots", "state"), [(("x", "y"), "warn"), (("x", "x"), "fail")])
def test_the_same_host_name_twice(boots: tuple[str, str], state: str) -> None:
    hosts = [Host(hostname="node", boot_id=boot, own_name=Resolution(name="n", addresses=[])) for boot in boots]
    pair = [node(n, LO, nic("eth0", f"10.1.0.{i}/24"), host=hosts[i]) for i, n in enumerate("ab")]
    assert verdict("NET010", *pair).state.value == state


@pytest.mark.parametrize(
    ("interfaces", "state"),
    [
        ([nic("eth0", "10.1.0.1/20"), nic("eth1", "10.1.4.2/20")], "warn"),
        ([nic("eth0", "10.1.0.1/24"), nic("eth1", "10.2.0.2/24")], "ok"),
        ([nic("eth0", "10.1.0.1/24"), nic("eth0:1", "10.1.0.2/24")], "ok"),
        ([nic("eth0", "10.1.0.1/24"), nic("eth1", "10.1.0.2/24", running=False)], "ok"),
        ([nic("eth0", "10.1.0.1/32"), nic("eth1", "10.1.0.1/32")], "ok"),
        ([nic("ib0", "10.5.0.1/24"), nic("eth0", "10.1.0.1/24"), nic("eth1", "10.1.0.2/24")], "note"),
    ],
)
def test_shared_subnet(interfaces: list[Interface], state: str) -> None:
    two = Job(nodes_asked=2)
    assert verdict("NET011", node("a", LO, *interfaces), job=two).state.value == state


def test_a_subnet_shared_on_a_node_alone_or_by_rails_of_slingshot_is_a_note() -> None:
    home = [nic("enp6s0", "192.168.1.7/24"), nic("wlp5s0", "192.168.1.8/24")]
    assert verdict("NET011", node("a", LO, *home)).state.value == "note"
    rails = [nic(f"hsn{rail}", f"10.249.{rail}.7/16", driver="cxi_core") for rail in range(4)]
    assert verdict("NET011", node("a", LO, *rails), job=Job(nodes_asked=2)).state.value == "note"


def test_rails_of_sockets_have_one_mtu() -> None:
    def rails(name: str, last: int, mtu: int = 8244, **more: Any) -> Node:
        named = {"NCCL_FASTRAK_IFNAME": "eth1,eth2", "NCCL_SOCKET_IFNAME": "eth0"}
        own = [nic(f"eth{rail}", f"10.{rail}.0.{last}/24", mtu=mtu if rail == 2 else 8244) for rail in range(3)]
        return node(name, LO, *own, env=named, **more)

    judgement = verdict("NET004", rails("a", 1), rails("b", 2, 1500), rails("c", 3))
    assert [finding.what for finding in judgement.findings if finding.state.value == "warn"] == [
        "the MTU of eth2 is 1500; 2 of 3 nodes have 8244"
    ]
    assert verdict("NET004", rails("a", 1), rails("b", 2), rails("c", 3)).state.value == "ok"


@pytest.mark.parametrize(
    ("interfaces", "state"),
    [
        ([LO], "ok"),
        ([], "fail"),
        ([nic("lo", kind="loopback", up=False)], "fail"),
        ([nic("lo", "::1/128")], "fail"),
    ],
)
def test_loopback(interfaces: list[Interface], state: str) -> None:
    assert verdict("NET012", node("a", *interfaces)).state.value == state


@pytest.mark.parametrize(
    ("lo", "line"),
    [
        (nic("lo", "::1/128", kind="loopback"), "ip addr add 127.0.0.1/8 dev lo"),
        (nic("lo", "127.0.0.1/8", kind="loopback", up=False), "ip link set dev lo up"),
    ],
)
def test_a_loopback_that_is_up_gets_its_address_and_not_a_link(lo: Interface, line: str) -> None:
    (finding,) = verdict("NET012", node("a", lo)).findings
    assert finding.remedies[0].commands[0] == line


@pytest.mark.parametrize(
    "code", ["NET001", "NET002", "NET003", "NET004", "NET005", "NET008", "NET010", "NET011", "NET012"]
)
def test_interfaces_that_were_not_read_are_unknown(code: str) -> None:
    blind: list[Node] = [node(n, network=Network(interfaces=DENIED)) for n in "ab"]
    assert states_of(verdict(code, *blind)) == [("unknown", "a"), ("unknown", "b")]


@pytest.mark.parametrize("code", ["NET003", "NET004", "NET005", "NET008", "NET010"])
def test_simulated_nodes_are_one_machine(code: str) -> None:
    judgement = verdict(code, A, AWAY, job=Job(simulated=True, nodes_asked=2))
    assert (judgement.state.value, judgement.reason) == ("skipped", "simulated nodes are one machine")
