"""Which HCAs, ports and GIDs NCCL's InfiniBand transport takes on a node, and why: its own rules over facts.

Source: NVIDIA/nccl src/transport/net_ib and src/misc/socket.cc (parseStringList, matchIfList) by version.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ncclcheck.probes.facts import Gid, Hca, Port, Unread, value_or
from ncclcheck.reports.subjects.nccl.variables import Version, parse_int

AUTOMATIC_GID_SINCE: Version = (2, 21, 0)  # NCCL_IB_GID_INDEX defaults to -1: a RoCE v2 entry is looked for
# NCCL_IB_GID_INDEX is ignored on InfiniBand's own links
GID_VARIABLE_NOT_FOR_INFINIBAND_SINCE: Version = (2, 22, 0)
PCI_ORDER_SINCE: Version = (2, 29, 7)  # HCAs are sorted by their PCI path, as `_order` does
RAIL_SINCE: Version = (2, 30, 3)  # rails may follow the port in NCCL_IB_HCA, and an empty port is any
PEERMEM_SINCE: Version = (2, 23, 0)  # the module nvidia_peermem is known too, not only nv_peer_mem
_NEWEST: Version = (2, 30, 7)  # taken where the version is unknown: the newest whose source was read
_MOST_HCAS = 32  # MAX_IB_DEVS. Source: NVIDIA/nccl src/transport/net_ib
_DIGITS = 6  # a port has one or two digits; int() of a name from outside with thousands would take long
_LAYERS = ("InfiniBand", "Ethernet")
_LINK_LOCAL = "fe80:0000:0000:0000:"
_MAPPED = "0000:0000:0000:0000:0000:ffff:"


@dataclass(frozen=True)
class HcaEntry:
    """One `hca[:port[:rail[:plane]]]`; port -1 is any."""

    name: str
    port: int = -1


@dataclass(frozen=True)
class HcaPattern:
    """A value of NCCL_IB_HCA as NCCL reads it: `^` and `=` hold for the whole list."""

    exclude: bool
    exact: bool
    entries: tuple[HcaEntry, ...]
    lost: int = 0

    def names(self, entry: HcaEntry, hca: str, port: int) -> bool:
        """Whether this entry means this port."""
        same = hca == entry.name if self.exact else hca.startswith(entry.name)
        return same and entry.port in (-1, port)

    def takes(self, hca: str, port: int) -> bool:
        """Whether this port is wanted. An empty list names every port."""
        named = not self.entries or any(self.names(entry, hca, port) for entry in self.entries)
        return named != self.exclude


def parse_hca(value: str, version: Version | None = None) -> HcaPattern:
    """Read NCCL_IB_HCA; nothing is trimmed, and at most 32 entries count."""
    rest = value.removeprefix("^")
    may_leave_out = (version or _NEWEST) >= RAIL_SINCE
    entries = [_entry(text, may_leave_out) for text in rest.removeprefix("=").split(",")]
    named = [entry for entry in entries if entry.name]
    return HcaPattern(
        value.startswith("^"), rest.startswith("="), tuple(named[:_MOST_HCAS]), len(named[_MOST_HCAS:])
    )


def _entry(text: str, may_leave_out: bool) -> HcaEntry:
    """An empty field is any port only where rails may follow it; before, it is port 0, which no port has."""
    name, colon, rest = text.partition(":")
    any_port = not colon or (may_leave_out and not rest.partition(":")[0])
    return HcaEntry(name, -1 if any_port else _atoi(rest))


def _atoi(text: str) -> int:
    match = re.match(r"\s*([+-]?\d{1,9})", text, re.ASCII)
    return int(match[1]) if match else 0


def port_number(port: Port) -> int:
    """From 1; 0 for a name that is no number of a port."""
    return int(port.name) if port.name.isdecimal() and len(port.name) < _DIGITS else 0


@dataclass(frozen=True)
class UsedPort:
    """A port of an HCA."""

    hca: Hca
    port: Port

    @property
    def name(self) -> str:
        """As NCCL prints it, without the port where there is one only."""
        several = not isinstance(self.hca.ports, Unread) and len(self.hca.ports) > 1
        return f"{self.hca.name}:{self.port.name}" if several else self.hca.name

    @property
    def number(self) -> int:
        """The number of the port, from 1."""
        return port_number(self.port)

    @property
    def is_roce(self) -> bool:
        """Whether the link is Ethernet."""
        return self.port.link_layer == "Ethernet"


@dataclass(frozen=True)
class HcaChoice:
    """used: in NCCL's order. inactive: wanted, and not ACTIVE. unseen: wanted, its state unread.

    unwanted: ACTIVE, and not selected by NCCL_IB_HCA. reason: what decided.
    """

    used: tuple[UsedPort, ...]
    inactive: tuple[UsedPort, ...]
    unseen: tuple[UsedPort, ...]
    unwanted: tuple[UsedPort, ...]
    reason: str

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the ports used."""
        return tuple(port.name for port in self.used)


def hca_choice(
    devices: Sequence[Hca],
    env: Mapping[str, str],
    version: Version | None,
    pci_paths: Mapping[str, tuple[str, ...]] | None = None,
) -> HcaChoice:
    """What NET/IB takes. env: the effective environment. pci_paths: the bridges above each PCI address."""
    if parse_int(env.get("NCCL_IB_DISABLE", "")).value not in (None, 0):
        return HcaChoice((), (), (), (), f"NCCL_IB_DISABLE={env['NCCL_IB_DISABLE']}")
    value = env.get("NCCL_IB_HCA", "")
    pattern = parse_hca(value, version)
    ports = [UsedPort(hca, port) for hca in devices for port in value_or(hca.ports, [])]
    able = [port for port in ports if isinstance(port.port.link_layer, Unread) or port.port.link_layer in _LAYERS]
    wanted = [port for port in able if pattern.takes(port.hca.name, port.number)]
    used = sorted(
        (port for port in wanted if port.port.state == "ACTIVE"),
        key=lambda port: _order(port, version or _NEWEST, pci_paths or {}),
    )
    return HcaChoice(
        used=tuple(used[:_MOST_HCAS]),
        inactive=tuple(
            port for port in wanted if isinstance(port.port.state, str) and port.port.state != "ACTIVE"
        ),
        unseen=tuple(port for port in wanted if isinstance(port.port.state, Unread)),
        unwanted=tuple(port for port in able if port not in wanted and port.port.state == "ACTIVE"),
        reason=f"NCCL_IB_HCA={value}" if value else "every ACTIVE port",
    )


def _order(port: UsedPort, version: Version, paths: Mapping[str, tuple[str, ...]]) -> tuple[object, ...]:
    """By PCI path since 2.29.7; before that as libibverbs lists them, which follows their numbers."""
    address = value_or(port.hca.pci, "")
    place = (*paths.get(address, ()), address) if version >= PCI_ORDER_SINCE else ()
    return (place, _by_number(port.hca.name), port.number)


@lru_cache(maxsize=4096)
def _by_number(name: str) -> list[tuple[bool, str]]:
    """mlx5_10 after mlx5_9."""
    parts = re.findall(r"\d+|\D+", name)
    return [(part.isdecimal(), part.zfill(9) if part.isdecimal() else part) for part in parts]


@dataclass(frozen=True)
class GidChoice:
    """index: the entry that NCCL takes. gid: what stands there, None where it is empty. asked: by the variable."""

    index: int
    gid: Gid | None
    reason: str
    asked: bool = False


def gid_choice(port: UsedPort, env: Mapping[str, str], version: Version | None) -> GidChoice | None:
    """The GID of a port; None where the table was not read."""
    gids = port.port.gids
    if isinstance(gids, Unread):
        return None
    table = {gid.index: gid for gid in gids}
    version = version or _NEWEST
    asked = parse_int(env.get("NCCL_IB_GID_INDEX", "")).value
    ignored = not port.is_roce and version >= GID_VARIABLE_NOT_FOR_INFINIBAND_SINCE
    if isinstance(asked, int) and not ignored and (asked >= 0 or version < AUTOMATIC_GID_SINCE):
        return GidChoice(asked, table.get(asked), f"NCCL_IB_GID_INDEX={env['NCCL_IB_GID_INDEX']}", asked=True)
    if version < AUTOMATIC_GID_SINCE:
        return GidChoice(0, table.get(0), "NCCL before 2.21 takes index 0")
    if not port.is_roce:
        return GidChoice(0, table.get(0), "index 0 on InfiniBand")
    index = automatic_gid(gids, env)
    return GidChoice(index, table.get(index), "chosen by NCCL 2.21 and later")


def automatic_gid(gids: Sequence[Gid], env: Mapping[str, str]) -> int:
    """ncclIbGetGidIndex: from index 0 on, a candidate wins by family, then by RoCE version, within the subnet."""
    family = 6 if env.get("NCCL_IB_ADDR_FAMILY") == "AF_INET6" else 4
    subnet = _subnet(env.get("NCCL_IB_ADDR_RANGE", ""), family)
    asked = parse_int(env.get("NCCL_IB_ROCE_VERSION_NUM", "")).value
    wanted = asked if isinstance(asked, int) else 2
    table = {gid.index: gid for gid in gids}
    best = 0
    for index in sorted(table):
        if index and family_of(table[index]) == family and _in_subnet(table[index], subnet):
            now = table.get(best)
            if family_of(now) != family or _is_better(table[index], now, wanted):
                best = index
    return best


def _is_better(candidate: Gid, now: Gid | None, wanted: int) -> bool:
    if not is_routable(candidate) or roce_version(candidate) != wanted:
        return False
    return now is None or not is_routable(now) or roce_version(now) != wanted


def address_of(gid: Gid) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address that a RoCE GID stands for: IPv4 where it is a mapped one."""
    return _address(gid.gid)


@lru_cache(maxsize=65536)
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return ipaddress.IPv6Address(0)
    return address.ipv4_mapped or address


def family_of(gid: Gid | None) -> int:
    """4 for a mapped IPv4 address; all else, an empty entry too, counts as 6."""
    return 4 if gid is not None and gid.gid.startswith(_MAPPED) else 6


def is_routable(gid: Gid) -> bool:
    """NCCL's validGid: neither empty nor of the link alone. A GID is written in full, so its text tells."""
    return not gid.gid.startswith(_LINK_LOCAL) and bool(gid.gid.strip("0:"))


def roce_version(gid: Gid) -> int:
    """1 or 2; 0 where the type was not read."""
    if isinstance(gid.type, Unread):
        return 0
    return 2 if gid.type.startswith("RoCE v2") else 1 if "RoCE v1" in gid.type else 0


def _subnet(text: str, family: int) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        network = ipaddress.ip_network(text, strict=False) if "/" in text else None  # without /BITS it is no range
    except ValueError:
        return None
    return network if network and network.version == family else None


def _in_subnet(gid: Gid, subnet: ipaddress.IPv4Network | ipaddress.IPv6Network | None) -> bool:
    return subnet is None or address_of(gid) in subnet
