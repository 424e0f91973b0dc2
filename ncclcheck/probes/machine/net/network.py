"""The network interfaces in getifaddrs(3) order, and the routes of the kernel's main table.

Recorded name: `interfaces`, a JSON list of Told, in getifaddrs(3) order: what is not in files.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

import psutil
from msgspec import Struct

from ncclcheck.probes.facts import (
    Address,
    Interface,
    InterfaceKind,
    Network,
    Packets,
    PolicyRule,
    RefusingRoute,
    Shaper,
    Unread,
    replace,
)
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.net import netlink
from ncclcheck.probes.machine.net.filters import filters
from ncclcheck.probes.machine.net.routes import routes

T = TypeVar("T")
_State = Literal["tentative", "duplicate"]

_SYS = "/sys/class/net"
_IPV6 = "/proc/sys/net/ipv6/conf"
_IPV4 = "/proc/sys/net/ipv4/conf"
_TENTATIVE, _DUPLICATE, _OPTIMISTIC = 0x40, 0x08, 0x04  # IFA_F_*, linux/if_addr.h
_NO_REAL_SPEED: set[InterfaceKind] = {"loopback", "bridge", "veth", "tunnel", "virtual"}
_NO_REAL_SPEED_DRIVERS = {"virtio_net", "veth", "tun", "xen_netfront", "vif"}
_MADE_UP_SPEED = Unread("absent", "a virtual interface reports no real speed")
_KIND_OF_DEVTYPE: dict[str, InterfaceKind] = {
    "vlan": "vlan",
    "bridge": "bridge",
    "bond": "bond",
    "macvlan": "macvlan",
    "macvtap": "macvlan",
    "ipvlan": "macvlan",
    "vxlan": "tunnel",
    "geneve": "tunnel",
    "wireguard": "tunnel",
    "gtp": "tunnel",
    "ppp": "tunnel",
}
# ARPHRD_LOOPBACK, ARPHRD_INFINIBAND, as /sys/class/net/*/type has them. Source: linux/if_arp.h
_LOOPBACK, _INFINIBAND = 772, 32
_TUNNEL_TYPES = {512, 768, 769, 776, 778, 823, 65534}  # PPP, IPIP, IP6TNL, SIT, GRE, IP6GRE, no link layer


class InterfaceAnswer(Struct, frozen=True, kw_only=True):
    """What getifaddrs(3) and SIOCGIFMTU say of one interface. flags: up, running, loopback, ..."""

    name: str
    flags: list[str]
    mtu: int
    addresses: list[Address]


def probe(machine: Machine) -> Network:
    """Interfaces, also those without an address, routes, and what keeps packets from taking them."""
    tolds = machine.ask("interfaces", list[InterfaceAnswer], _tell)
    states = _states(machine)
    interfaces = (
        tolds if isinstance(tolds, Unread) else [_interface(machine, interface, states) for interface in tolds]
    )
    return Network(
        interfaces=interfaces,
        routes=routes(machine),
        rules=machine.ask("policy_rules", list[PolicyRule], lambda: _listed(netlink.rules)),
        refusing=machine.ask("refusing_routes", list[RefusingRoute], lambda: _listed(netlink.refusing_routes)),
        shapers=machine.ask("shapers", list[Shaper], lambda: _listed(netlink.shapers)),
        filters=filters(machine),
        forgets_s=_number(machine, "nf_conntrack_tcp_timeout_established"),
        adopts=(loose if isinstance(loose := _number(machine, "nf_conntrack_tcp_loose"), Unread) else loose != 0),
    )


def _number(machine: Machine, name: str) -> int | Unread:
    """A setting of the kernel's connection tracking; it is there once any rule has asked for states."""
    text = machine.read(f"/proc/sys/net/netfilter/{name}")
    if isinstance(text, Unread):
        return text
    return int(text) if text.strip().isdecimal() else Unread("broken", f"{name} is {text[:40]!r}")


def _listed(listing: Callable[[], list[T]]) -> list[T] | Unread:
    """A kernel without this listing (gVisor, a seccomp filter) says nothing of a host's network."""
    try:
        return listing()
    except OSError as error:
        return Unread("no_tool", f"rtnetlink: {error.strerror or error}")


def _tell() -> list[InterfaceAnswer]:
    """In the order in which the kernel lists links: that of getifaddrs(3) within each family of addresses.

    psutil's own order has the interfaces with IPv4 first: wrong for one that has IPv6 alone.
    """
    listed = psutil.net_if_addrs()
    stats = psutil.net_if_stats()
    places = {name: place for place, (_, name) in enumerate(socket.if_nameindex())}
    interfaces = []
    for name in sorted(dict.fromkeys([*listed, *stats]), key=lambda name: places.get(_device(name), len(places))):
        stat = stats.get(_device(name))
        addresses = [_address(int(a.family), a.address, a.netmask) for a in listed.get(name, [])]
        interfaces.append(
            InterfaceAnswer(
                name=name,
                flags=stat.flags.split(",") if stat else [],
                mtu=stat.mtu if stat else 0,
                addresses=[address for address in addresses if address],
            )
        )
    return interfaces


def _device(name: str) -> str:
    """An IPv4 alias such as eth0:1 is a name of its own in getifaddrs(3), on the device before the colon."""
    return name.partition(":")[0]


def _address(family: int, address: str, netmask: str | None) -> Address | None:
    if family == socket.AF_INET:
        mask = int(ipaddress.IPv4Address(netmask or "255.255.255.255"))
        return Address(family="ipv4", address=address, prefix=mask.bit_count())
    if family == socket.AF_INET6:
        mask = int(ipaddress.IPv6Address(netmask)) if netmask else 2**128 - 1
        return Address(family="ipv6", address=address.partition("%")[0], prefix=mask.bit_count())
    return None


def _interface(
    machine: Machine, interface: InterfaceAnswer, states: Mapping[tuple[str, str], _State]
) -> Interface:
    folder, ipv6 = f"{_SYS}/{_device(interface.name)}", f"{_IPV6}/{_device(interface.name)}"
    kind = _kind(machine, folder)
    driver = _last_part(machine.link(f"{folder}/device/driver"))
    return Interface(
        name=interface.name,
        kind=kind,
        up="up" in interface.flags,
        running="running" in interface.flags,
        mtu=interface.mtu or machine.number(f"{folder}/mtu"),
        speed_mbit=_speed(machine, folder, kind, driver),
        addresses=[
            replace(address, state=state)
            if (state := states.get((_device(interface.name), address.address)))
            else address
            for address in interface.addresses
        ],
        members=_members(machine, folder, kind),
        driver=driver,
        packets=_packets(machine, f"{folder}/statistics"),
        mac=machine.line(f"{folder}/address"),
        ipv6_off=machine.number(f"{ipv6}/disable_ipv6") == 1,
        downs=link_downs(machine, folder),
        rp_filter=_rp_filter(machine, _device(interface.name)),
    )


def _rp_filter(machine: Machine, device: str) -> int | Unread:
    """The larger one of that of the interface and that of all counts (ip-sysctl)."""
    own, of_all = machine.number(f"{_IPV4}/{device}/rp_filter"), machine.number(f"{_IPV4}/all/rp_filter")
    return own if isinstance(own, Unread) else of_all if isinstance(of_all, Unread) else max(own, of_all)


def _states(machine: Machine) -> dict[tuple[str, str], _State]:
    """(interface, address) of IPv6 that the kernel does not use yet, or never will."""
    text = machine.read("/proc/net/if_inet6")
    marked: dict[tuple[str, str], _State] = {}
    for words in () if isinstance(text, Unread) else map(str.split, text.splitlines()):
        try:
            address, flags, name = str(ipaddress.IPv6Address(int(words[0], 16))), int(words[4], 16), words[5]
        except (ValueError, IndexError):
            continue
        if flags & _DUPLICATE:
            marked[name, address] = "duplicate"
        elif flags & _TENTATIVE and not flags & _OPTIMISTIC:
            marked[name, address] = "tentative"
    return marked


def link_downs(machine: Machine, folder: str) -> int | Unread:
    """How often an interface lost its link since it was made."""
    downs = machine.number(f"{folder}/carrier_down_count")
    if not isinstance(downs, Unread):
        return downs
    changes = machine.number(f"{folder}/carrier_changes")  # kernels before 4.16: it went down and came up again
    return changes if isinstance(changes, Unread) else changes // 2


def _packets(machine: Machine, folder: str) -> Packets | Unread:
    counted: list[int] = []
    for kind in ("packets", "errors", "dropped"):
        for way in ("rx", "tx"):
            number = machine.number(f"{folder}/{way}_{kind}")
            if isinstance(number, Unread):
                return number
            counted.append(number)
    return Packets(packets=sum(counted[:2]), errors=sum(counted[2:4]), drops=sum(counted[4:]))


def _last_part(link: str | Unread) -> str | Unread:
    return link if isinstance(link, Unread) else link.rstrip("/").rpartition("/")[2]


def _kind(machine: Machine, folder: str) -> InterfaceKind | Unread:
    """The kernel says it in several places, the most telling first."""
    kind = machine.number(f"{folder}/type")
    if isinstance(kind, Unread):
        return kind
    if kind == _LOOPBACK:
        return "loopback"
    if named := _kind_by_name(machine, folder):
        return named
    if kind == _INFINIBAND:
        return "ipoib"
    if kind in _TUNNEL_TYPES or machine.exists(f"{folder}/tun_flags"):
        return "tunnel"
    return _kind_by_device(machine, folder)


def _kind_by_name(machine: Machine, folder: str) -> InterfaceKind | None:
    if machine.exists(f"{folder}/bonding"):
        return "bond"
    if machine.exists(f"{folder}/bridge"):
        return "bridge"
    uevent = machine.read(f"{folder}/uevent")
    lines = [] if isinstance(uevent, Unread) else uevent.splitlines()
    types = [line.removeprefix("DEVTYPE=") for line in lines if line.startswith("DEVTYPE=")]
    return _KIND_OF_DEVTYPE.get(types[0]) if types else None


def _kind_by_device(machine: Machine, folder: str) -> InterfaceKind:
    if machine.exists(f"{folder}/device"):
        return "physical"
    index, link = machine.number(f"{folder}/ifindex"), machine.number(f"{folder}/iflink")
    paired = not isinstance(index, Unread) and not isinstance(link, Unread) and link not in (0, index)
    return "veth" if paired else "virtual"


def _speed(machine: Machine, folder: str, kind: InterfaceKind | Unread, driver: str | Unread) -> int | Unread:
    """Megabits per second; the kernel writes -1, or gives an error, where there is none."""
    if kind in _NO_REAL_SPEED or driver in _NO_REAL_SPEED_DRIVERS:
        return _MADE_UP_SPEED
    text = machine.line(f"{folder}/speed")
    if isinstance(text, Unread):
        return Unread("absent", "it reports no speed")
    speed = machine.number(f"{folder}/speed")
    known = isinstance(speed, Unread) or (0 < speed < 2**31 and speed != 65535)
    return speed if known else Unread("absent", "it reports no speed")


def _members(machine: Machine, folder: str, kind: InterfaceKind | Unread) -> list[str] | Unread:
    if kind == "bond":
        text = machine.line(f"{folder}/bonding/slaves")
        return text if isinstance(text, Unread) else text.split()
    if kind == "bridge":
        return machine.names(f"{folder}/brif")
    return Unread("absent", "neither a bond nor a bridge")
