"""Interface choice: NCCL's own rules by version, and gloo's."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclcheck.probes.facts import Address, Interface, Resolution, Unread
from ncclcheck.reports.subjects.nccl.choice import InterfaceChoice, gloo_choice, nccl_choice, parse_pattern

Version = tuple[int, int, int]

OLD: Version = (2, 27, 7)
NEW: Version = (2, 28, 3)
INVERTED: Version = (2, 29, 5)
FIXED: Version = (2, 30, 3)


def interface(name: str, *addresses: str, running: bool | Unread = True) -> Interface:
    """An interface; addresses as ADDRESS/PREFIX."""
    return Interface(name=name, up=True, running=running, addresses=[_address(text) for text in addresses])


def _address(text: str) -> Address:
    address, _, prefix = text.partition("/")
    family: Literal["ipv4", "ipv6"] = "ipv6" if ":" in address else "ipv4"
    return Address(family=family, address=address, prefix=int(prefix))


LO = interface("lo", "127.0.0.1/8", "::1/128")
ETH0 = interface("eth0", "10.0.0.5/24", "fe80::5/64")
ETH1 = interface("eth1", "10.1.0.5/24")
ETH10 = interface("eth10", "10.2.0.5/24")
IB0 = interface("ib0", "192.168.9.5/24")
DOCKER0 = interface("docker0", "172.17.0.1/16")
VIRBR0 = interface("virbr0", "192.168.122.1/24")
BRIDGE = interface("br-1a2b", "172.18.0.1/16")
DOWN = interface("eth9", "10.9.0.5/24", running=False)
ONLY_V6 = interface("eth6", "fd00::6/64")
VLAN = interface("bond0.2093", "10.3.0.5/24")
BOND = interface("bond0", "10.4.0.5/24")
NODE = [LO, ETH0, ETH1, DOCKER0]

IFNAME = "NCCL_SOCKET_IFNAME"
FAMILY = "NCCL_SOCKET_FAMILY"
COMM_ID = "NCCL_COMM_ID"

CASES: list[tuple[str, list[Interface], dict[str, str], Version | None, str]] = [
    # by itself
    ("ethernet, not lo and docker", NODE, {}, OLD, "eth0 eth1"),
    ("the same in new versions", NODE, {}, NEW, "eth0 eth1"),
    ("the order of the system", [ETH1, ETH0, LO], {}, NEW, "eth1 eth0"),
    ("ib first", [LO, ETH0, IB0], {}, OLD, "ib0"),
    ("any name that starts with ib", [ETH0, interface("ibmgmt", "10.8.0.1/24")], {}, NEW, "ibmgmt"),
    ("an ib that is down", [ETH0, interface("ib1", "10.8.0.1/24", running=False)], {}, NEW, "eth0"),
    ("an ib that is down, old", [ETH0, interface("ib1", "10.8.0.1/24", running=False)], {}, OLD, "ib1"),
    ("virbr counts before 2.28.3", [LO, ETH0, VIRBR0], {}, OLD, "eth0 virbr0"),
    ("virbr is left out since", [LO, ETH0, VIRBR0], {}, NEW, "eth0"),
    ("virbr alone, old", [LO, VIRBR0], {}, OLD, "virbr0"),
    ("virbr behind docker", [LO, VIRBR0, DOCKER0], {}, NEW, "docker0"),
    ("virbr behind lo", [LO, VIRBR0], {}, NEW, "lo"),
    ("virbr where nothing else is", [VIRBR0], {}, NEW, "virbr0"),
    ("docker before lo", [LO, DOCKER0], {}, OLD, "docker0"),
    ("lo last", [LO], {}, NEW, "lo"),
    ("bridges are never left out", [LO, ETH0, BRIDGE], {}, NEW, "eth0 br-1a2b"),
    ("down counts before 2.28.3", [LO, ETH0, DOWN], {}, OLD, "eth0 eth9"),
    ("down is left out since", [LO, ETH0, DOWN], {}, NEW, "eth0"),
    ("2.28.2 is old", [DOWN, ETH0], {}, (2, 28, 2), "eth9 eth0"),
    ("not known is taken", [interface("eth0", "10.0.0.5/24", running=Unread("denied", "x"))], {}, NEW, "eth0"),
    ("no version: the newest rules", [LO, ETH0, DOWN, VIRBR0], {}, None, "eth0"),
    ("IPv4 before IPv6", [ONLY_V6, ETH0], {}, NEW, "eth0 eth6"),
    ("no address", [interface("eth3"), ETH0], {}, NEW, "eth0"),
    ("nothing at all", [], {}, NEW, ""),
    ("at most sixteen", [interface(f"eth{i}", f"10.0.{i}.1/24") for i in range(20)], {}, NEW,
     " ".join(f"eth{i}" for i in range(16))),
    # NCCL_SOCKET_FAMILY
    ("IPv6 only", [LO, ETH0, ONLY_V6], {FAMILY: "AF_INET6"}, NEW, "eth0 eth6"),
    ("IPv4 only", [LO, ETH0, ONLY_V6], {FAMILY: "AF_INET"}, NEW, "eth0"),
    ("a wrong family word changes nothing", [LO, ETH0, ONLY_V6], {FAMILY: "ipv6"}, NEW, "eth0 eth6"),
    ("IPv6 loopback is never taken", [LO], {FAMILY: "AF_INET6"}, NEW, ""),
    # NCCL_SOCKET_IFNAME
    ("a prefix", NODE, {IFNAME: "eth"}, NEW, "eth0 eth1"),
    ("a prefix takes longer names", [ETH1, ETH10], {IFNAME: "eth1"}, NEW, "eth1 eth10"),
    ("a bond takes its VLAN", [BOND, VLAN], {IFNAME: "bond0"}, NEW, "bond0 bond0.2093"),
    ("exact", [ETH1, ETH10], {IFNAME: "=eth1"}, NEW, "eth1"),
    ("exact holds for the list", [ETH0, ETH1, ETH10], {IFNAME: "=eth0,eth1"}, NEW, "eth0 eth1"),
    ("a list in the order of the system", NODE, {IFNAME: "eth1,eth0"}, NEW, "eth0 eth1"),
    ("not", NODE, {IFNAME: "^docker,lo"}, NEW, "eth0 eth1"),
    ("not and exact", [LO, ETH1, ETH10], {IFNAME: "^=eth1,lo"}, NEW, "eth10"),
    ("= and ^ in the wrong order", NODE, {IFNAME: "=^docker0"}, NEW, ""),
    ("a mark inside the list is a letter", NODE, {IFNAME: "eth0,^docker"}, NEW, "eth0"),
    ("no fallback", NODE, {IFNAME: "enp1s0"}, NEW, ""),
    ("no fallback, old", NODE, {IFNAME: "enp1s0"}, OLD, ""),
    ("one letter is ignored", NODE, {IFNAME: "e"}, NEW, "eth0 eth1"),
    ("empty is ignored", NODE, {IFNAME: ""}, NEW, "eth0 eth1"),
    ("a port is ignored", NODE, {IFNAME: "eth1:5000"}, NEW, "eth1"),
    ("an empty token is ignored", NODE, {IFNAME: ",,eth1"}, NEW, "eth1"),
    ("blanks are not trimmed", NODE, {IFNAME: "eth0, eth1"}, NEW, "eth0"),
    ("an empty list after = takes all", [LO, ETH0], {IFNAME: "=,"}, NEW, "lo eth0"),
    ("an empty list after ^= takes none", [LO, ETH0], {IFNAME: "^="}, NEW, ""),
    ("sixteen tokens count", [ETH0], {IFNAME: ",".join([f"x{i}" for i in range(16)] + ["eth0"])}, NEW, ""),
    ("a named one that is down", [ETH0, DOWN], {IFNAME: "eth9"}, NEW, ""),
    ("a named one that is down, old", [ETH0, DOWN], {IFNAME: "eth9"}, OLD, "eth9"),
    ("a named one of the other family", [ETH1], {IFNAME: "eth1", FAMILY: "AF_INET6"}, NEW, ""),
    ("docker may be named", NODE, {IFNAME: "docker0"}, NEW, "docker0"),
    # NCCL_COMM_ID
    ("the subnet of the id", NODE, {COMM_ID: "10.1.0.9:5000"}, FIXED, "eth1"),
    ("the subnet of the id, before the fault", NODE, {COMM_ID: "10.1.0.9:5000"}, (2, 28, 9), "eth1"),
    ("compared the wrong way round", NODE, {COMM_ID: "10.1.0.9:5000"}, INVERTED, "lo"),
    ("the first version with the fault", NODE, {COMM_ID: "10.1.0.9:5000"}, (2, 29, 2), "lo"),
    ("the last version with the fault", NODE, {COMM_ID: "10.1.0.9:5000"}, (2, 29, 7), "lo"),
    ("IPv6 never had the fault", [LO, ETH0, ONLY_V6], {COMM_ID: "[fd00::9]:5000"}, INVERTED, "eth6"),
    ("a link-local id names its interface", [ETH0, interface("eth7", "fe80::7/64")],
     {COMM_ID: "[fe80::9%eth7]:5000"}, FIXED, "eth7"),
    ("ib before the id", [LO, IB0, ETH1], {COMM_ID: "10.1.0.9:5000"}, FIXED, "ib0"),
    ("a name before the id", NODE, {COMM_ID: "10.1.0.9:5000", IFNAME: "eth0"}, FIXED, "eth0"),
    ("no subnet matches the id", NODE, {COMM_ID: "192.0.2.1:5000"}, FIXED, "eth0 eth1"),
    ("a host name in the id", NODE, {COMM_ID: "head:5000"}, FIXED, "eth0 eth1"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "interfaces", "env", "version", "expected"), CASES, ids=[c[0] for c in CASES])
def test_nccl(
    case: str, interfaces: list[Interface], env: dict[str, str], version: Version | None, expected: str
) -> None:
    choice = nccl_choice(interfaces, env, version)
    assert " ".join(choice.names) == expected, case
    assert choice.reason
    assert bool(choice.problem) == (not expected) or COMM_ID in env


def test_each_interface_has_its_first_address() -> None:
    choice = nccl_choice([ETH0], {}, NEW)
    assert [chosen.address for chosen in choice.used] == ["10.0.0.5"]


def test_bootstrap_is_the_first_one() -> None:
    choice = nccl_choice(NODE, {}, NEW)
    assert choice.bootstrap == choice.used[0]


def test_bootstrap_goes_by_the_id_even_where_a_name_is_set() -> None:
    choice = nccl_choice(NODE, {COMM_ID: "10.1.0.9:5000", IFNAME: "eth0"}, FIXED)
    assert choice.bootstrap is not None
    assert (choice.bootstrap.name, choice.names, choice.problem) == ("eth1", ("eth0",), "")


def test_a_link_local_id_without_its_interface_is_in_no_subnet() -> None:
    """As NCCL 2.23 to 2.27 did: the scopes are compared, and an address of the link always has one."""
    cards = [LO, interface("eth0", "10.1.0.1/24", "fe80::1/64")]
    assert nccl_choice(cards, {COMM_ID: "[fe80::9]:5000"}, FIXED).bootstrap is None
    there = nccl_choice(cards, {COMM_ID: "[fe80::9%eth0]:5000"}, FIXED).bootstrap
    assert there is not None
    assert there.address == "fe80::1"


def test_an_id_in_no_subnet_ends_the_job() -> None:
    choice = nccl_choice(NODE, {COMM_ID: "192.0.2.1:5000"}, FIXED)
    assert choice.bootstrap is None
    assert "192.0.2.1" in choice.problem


@pytest.mark.parametrize(
    ("env", "version", "words"),
    [
        ({IFNAME: "enp1s0"}, NEW, "matches no usable interface of lo, eth0"),
        ({IFNAME: "e"}, NEW, "one-letter"),
        ({}, None, "version is not known"),
        ({COMM_ID: "10.1.0.9:5000"}, INVERTED, "wrong way round"),
    ],
)
def test_the_reason_says_why(env: dict[str, str], version: Version | None, words: str) -> None:
    assert words in nccl_choice(NODE, env, version).reason


@given(st.text(max_size=40), st.sampled_from([OLD, NEW, INVERTED, None]))
def test_any_value_is_survived(value: str, version: Version | None) -> None:
    choice = nccl_choice(NODE, {IFNAME: value, COMM_ID: value, FAMILY: value}, version)
    assert set(choice.names) <= {"lo", "eth0", "eth1", "docker0"}
    assert len(parse_pattern(value).tokens) <= 16


def own(*addresses: str) -> Resolution:
    """What the node's name resolves to."""
    return Resolution(name="gpu-a17", addresses=list(addresses))


GLOO: list[tuple[str, dict[str, str], Resolution | Unread, str]] = [
    ("the own name", {}, own("10.1.0.5"), "eth1"),
    ("the first that is local", {}, own("192.0.2.1", "10.0.0.5"), "eth0"),
    ("Debian's 127.0.1.1", {}, own("127.0.1.1"), "lo"),
    ("IPv6 loopback", {}, own("::1"), "lo"),
    ("IPv6", {}, own("fe80::5"), "eth0"),
    ("an address of another machine", {}, own("192.0.2.1"), "lo"),
    ("no address", {}, own(), "lo"),
    ("named", {"GLOO_SOCKET_IFNAME": "eth1"}, own("10.0.0.5"), "eth1"),
    ("a list in the user's order", {"GLOO_SOCKET_IFNAME": "eth1,eth0"}, own(), "eth1 eth0"),
    ("no prefixes", {"GLOO_SOCKET_IFNAME": "eth"}, own(), ""),
    ("no ^", {"GLOO_SOCKET_IFNAME": "^lo"}, own(), ""),
    ("no =", {"GLOO_SOCKET_IFNAME": "=eth0"}, own(), ""),
    ("one of two is missing", {"GLOO_SOCKET_IFNAME": "eth0,eth5"}, own(), ""),
    ("one letter is ignored", {"GLOO_SOCKET_IFNAME": "e"}, own("10.1.0.5"), "eth1"),
    ("NCCL's variable is not gloo's", {IFNAME: "eth0"}, own("10.1.0.5"), "eth1"),
    ("the name is not known", {}, Unread("timed_out", "the resolver is silent"), ""),
]


@pytest.mark.parametrize(("case", "env", "own_name", "expected"), GLOO, ids=[c[0] for c in GLOO])
def test_gloo(case: str, env: dict[str, str], own_name: Resolution | Unread, expected: str) -> None:
    choice: InterfaceChoice = gloo_choice(NODE, env, own_name)
    assert " ".join(choice.names) == expected, case
    assert bool(choice.problem) == (not expected)
