"""The network probe on recorded machines, and on this one."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import Address, Interface, InterfaceKind, Network, Packets, Route, Unread, known
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.net import network
from tests.helpers.trees import RECORDED, needs_recorded, tree

NET = "/sys/class/net"
UP = ["up", "broadcast", "running"]


def listed(
    name: str, *addresses: tuple[str, str, int], flags: list[str] = UP, mtu: int = 1500
) -> dict[str, object]:
    listed = [{"family": family, "address": address, "prefix": prefix} for family, address, prefix in addresses]
    return {"name": name, "flags": flags, "mtu": mtu, "addresses": listed}


def only_interface(machine: Machine) -> Interface:
    return known(network.probe(machine).interfaces)[0]


def test_a_healthy_card(tmp_path: Path) -> None:
    files = {
        f"{NET}/eth0/type": "1\n",
        f"{NET}/eth0/speed": "100000\n",
        f"{NET}/eth0/address": "02:42:0a:01:00:11\n",
        f"{NET}/eth0/carrier_down_count": "3\n",
        "/proc/sys/net/ipv4/conf/all/rp_filter": "0\n",
        "/proc/sys/net/ipv4/conf/eth0/rp_filter": "2\n",
        f"{NET}/eth0/device/driver": "-> ../../bus/pci/drivers/mlx5_core",
        **{f"{NET}/eth0/statistics/{way}_packets": "5000\n" for way in ("rx", "tx")},
        **{f"{NET}/eth0/statistics/{way}_errors": "1\n" for way in ("rx", "tx")},
        **{f"{NET}/eth0/statistics/{way}_dropped": "4\n" for way in ("rx", "tx")},
    }
    addresses = [("ipv4", "10.1.0.17", 24), ("ipv6", "fe80::1", 64)]
    interface = only_interface(tree(tmp_path, files, interfaces=[listed("eth0", *addresses, mtu=9000)]))
    assert interface == Interface(
        name="eth0",
        kind="physical",
        up=True,
        running=True,
        mtu=9000,
        speed_mbit=100000,
        addresses=[
            Address(family="ipv4", address="10.1.0.17", prefix=24),
            Address(family="ipv6", address="fe80::1", prefix=64),
        ],
        members=Unread("absent", "neither a bond nor a bridge"),
        driver="mlx5_core",
        packets=Packets(packets=10000, errors=2, drops=8),
        rp_filter=2,
        mac="02:42:0a:01:00:11",
        downs=3,
    )


@pytest.mark.parametrize(("files", "downs"), [({"carrier_changes": "9\n"}, 4), ({}, None)])
def test_an_older_kernel_counts_changes(tmp_path: Path, files: dict[str, str], downs: int | None) -> None:
    made = {f"{NET}/eth0/type": "1\n", **{f"{NET}/eth0/{name}": text for name, text in files.items()}}
    changes = only_interface(tree(tmp_path, made, interfaces=[listed("eth0")])).downs
    assert changes == downs if downs is not None else isinstance(changes, Unread)


def test_a_card_without_a_cable(tmp_path: Path) -> None:
    files = {f"{NET}/eth0/type": "1\n", f"{NET}/eth0/speed": "-1\n", f"{NET}/eth0/device/x": ""}
    interface = only_interface(tree(tmp_path, files, interfaces=[listed("eth0", flags=["up", "broadcast"])]))
    assert (interface.up, interface.running, interface.addresses) == (True, False, [])
    assert interface.speed_mbit == Unread("absent", "it reports no speed")


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("loopback", {"type": "772"}),
        ("ipoib", {"type": "32", "device/x": ""}),
        ("bond", {"type": "1", "bonding/slaves": "eth1 eth2"}),
        ("bond", {"type": "32", "bonding/slaves": "ib0 ib1"}),
        ("bridge", {"type": "1", "bridge/bridge_id": "8000"}),
        ("vlan", {"type": "1", "uevent": "DEVTYPE=vlan\nINTERFACE=eth0.7"}),
        ("macvlan", {"type": "1", "uevent": "DEVTYPE=macvlan", "ifindex": "9", "iflink": "2"}),
        ("tunnel", {"type": "1", "uevent": "DEVTYPE=vxlan"}),
        ("tunnel", {"type": "65534", "uevent": "DEVTYPE=wireguard"}),
        ("tunnel", {"type": "768"}),
        ("tunnel", {"type": "1", "tun_flags": "0x1002"}),
        ("veth", {"type": "1", "ifindex": "3", "iflink": "12"}),
        ("physical", {"type": "1", "device/x": "", "ifindex": "2", "iflink": "2"}),
        ("virtual", {"type": "1", "ifindex": "5", "iflink": "5", "uevent": "DEVTYPE=other"}),
    ],
)
def test_kinds(tmp_path: Path, kind: InterfaceKind, files: dict[str, str]) -> None:
    machine = tree(tmp_path, {f"{NET}/x0/{name}": text for name, text in files.items()}, interfaces=[listed("x0")])
    assert only_interface(machine).kind == kind


def test_members_of_a_bond_and_of_a_bridge(tmp_path: Path) -> None:
    files = {
        f"{NET}/bond0/type": "1",
        f"{NET}/bond0/bonding/slaves": "eth1 eth2\n",
        f"{NET}/br0/type": "1",
        f"{NET}/br0/bridge/bridge_id": "x",
        f"{NET}/br0/brif/eth0/port_no": "1",
    }
    interfaces = known(
        network.probe(tree(tmp_path, files, interfaces=[listed("bond0"), listed("br0")])).interfaces
    )
    assert [i.members for i in interfaces] == [["eth1", "eth2"], ["eth0"]]


@pytest.mark.parametrize("driver", ["virtio_net", "veth"])
def test_a_virtual_card_has_no_real_speed(tmp_path: Path, driver: str) -> None:
    files = {f"{NET}/eth0/type": "1", f"{NET}/eth0/speed": "10000", f"{NET}/eth0/device/driver": f"-> ../{driver}"}
    interface = only_interface(tree(tmp_path, files, interfaces=[listed("eth0")]))
    assert interface.speed_mbit == Unread("absent", "a virtual interface reports no real speed")


def test_an_alias_stands_on_its_device(tmp_path: Path) -> None:
    files = {f"{NET}/eth0/type": "1", f"{NET}/eth0/device/x": ""}
    assert only_interface(tree(tmp_path, files, interfaces=[listed("eth0:1")])).kind == "physical"


def test_routes(tmp_path: Path) -> None:
    files = {
        "/proc/net/route": (
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
            "eth0\t00000000\t0101010A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
            "eth0\t0001010A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
            "*\t0002010A\t00000000\t0201\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
            "eth0\t0001"
        ),
        "/proc/net/ipv6_route": (
            "fd000000000000000000000000000000 40 00000000000000000000000000000000 00 "
            "00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n"
            "fe800000000000000000000000000000 40 00000000000000000000000000000000 00 "
            "00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n"
            "00000000000000000000000000000001 80 00000000000000000000000000000000 00 "
            "00000000000000000000000000000000 00000000 00000002 00000000 80200001       lo\n"
            "00000000000000000000000000000000 00 00000000000000000000000000000000 00 "
            "fd0000000000000000000000000000ff 00000400 00000001 00000000 00000003     eth0\n"
        ),
    }
    assert network.probe(tree(tmp_path, files)).routes == [
        Route(destination="0.0.0.0/0", gateway="10.1.1.1", interface="eth0", metric=100),
        Route(destination="10.1.1.0/24", gateway="", interface="eth0", metric=0),
        Route(destination="fd00::/64", gateway="", interface="eth0", metric=256),
        Route(destination="::/0", gateway="fd00::ff", interface="eth0", metric=1024),
    ]


def test_nothing_recorded(tmp_path: Path) -> None:
    facts = network.probe(tree(tmp_path, {}))
    kinds = [fact.kind for fact in (facts.interfaces, facts.routes) if isinstance(fact, Unread)]
    assert kinds == ["recorded", "absent"]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        [*(f"{NET}/x0/{name}" for name in ("type", "speed", "uevent", "ifindex", "iflink", "bonding/slaves")),
         "/proc/net/route", "/proc/net/ipv6_route", "/.ncclcheck/interfaces.json"]
    ),
    st.one_of(st.binary(max_size=80), st.from_regex(r"[0-9A-F \t]{1,80}\n", fullmatch=True).map(str.encode)),
)  # fmt: skip
def test_no_content_of_a_file_makes_it_raise(path: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = {f"{NET}/x0/type": b"1", f"{NET}/x0/ifindex": b"1"}
        machine = tree(Path(folder), files, interfaces=[listed("x0"), listed("../../etc"), listed("a\x00b")])
        tree(Path(folder), {path: content})
        assert isinstance(network.probe(machine), Network)


def test_interfaces_are_in_the_order_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL takes the addresses of a family in that order: one without IPv4 is not behind all that have it."""
    six = SimpleNamespace(family=socket.AF_INET6, address="fd00::af", netmask="ffff::")
    four = SimpleNamespace(family=socket.AF_INET, address="10.0.0.7", netmask="255.0.0.0")
    monkeypatch.setattr("psutil.net_if_addrs", lambda: {"last:1": [four], "last": [four], "first": [six]})
    monkeypatch.setattr("psutil.net_if_stats", dict)
    monkeypatch.setattr("socket.if_nameindex", lambda: [(2, "first"), (7, "last")])
    assert [answer.name for answer in network._tell()] == ["first", "last:1", "last"]


def test_this_machine_has_loopback() -> None:
    by_name = {i.name: i for i in known(network.probe(Machine()).interfaces)}
    if "lo" in by_name:
        assert by_name["lo"].kind == "loopback"
        assert Address(family="ipv4", address="127.0.0.1", prefix=8) in known(by_name["lo"].addresses)


@needs_recorded
def test_a_real_card_of_the_procfs_fixtures(tmp_path: Path) -> None:
    files, path = {}, ""
    lines = iter((RECORDED / "procfs/testdata/fixtures.ttar").read_text(errors="replace").splitlines())
    for line in lines:
        path = line.removeprefix("Path: fixtures") if line.startswith("Path: ") else path
        if path.startswith(f"{NET}/eth0/") and line.startswith("Lines: "):
            content = [next(lines) for _ in range(int(line.removeprefix("Lines: ")))]
            files[path] = "\n".join(content).removesuffix("EOF") + "\n"
        elif path == f"{NET}/eth0/device" and line.startswith("SymlinkTo: "):
            files[path] = line.replace("SymlinkTo:", "->")
    interface = only_interface(tree(tmp_path, files, interfaces=[listed("eth0", mtu=0)]))
    assert (interface.kind, interface.mtu) == ("physical", 1500)
    assert files[f"{NET}/eth0/speed"].strip() == str(interface.speed_mbit)
