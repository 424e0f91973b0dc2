"""Which interfaces NCCL and gloo choose on a node, and why: their own rules, over facts alone.

Source: NVIDIA/nccl src/misc/socket.cc and src/os/linux.cc by version; torch ProcessGroupGloo.cpp.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ncclcheck.probes.facts import Address, Interface, Resolution, Unread, value_or
from ncclcheck.reports.subjects.nccl.variables import assigned

Version = tuple[int, int, int]

# interfaces must be IFF_RUNNING, and virbr is passed over with docker and lo
RUNNING_AND_VIRBR_SINCE: Version = (2, 28, 3)
_INVERTED_SUBNET = ((2, 29, 2), (2, 29, 7))
_NEWEST: Version = (2, 30, 7)  # taken where the version is unknown: the newest whose source was read
_MOST_INTERFACES = 16  # MAX_IFS of NCCL's sockets. Source: NVIDIA/nccl src/include/socket.h


@dataclass(frozen=True)
class Chosen:
    """An interface and the one address of it that is used."""

    name: str
    address: str


@dataclass(frozen=True)
class InterfaceChoice:
    """used: the interfaces in order. bootstrap: the one over which the ranks meet. problem: why there is none."""

    used: tuple[Chosen, ...]
    bootstrap: Chosen | None
    reason: str
    problem: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the interfaces used."""
        return tuple(chosen.name for chosen in self.used)


@dataclass(frozen=True)
class NamePattern:
    """A value of NCCL_SOCKET_IFNAME as NCCL reads it: `^` and `=` hold for the whole list."""

    exclude: bool
    exact: bool
    tokens: tuple[str, ...]

    def takes(self, name: str) -> bool:
        """Whether this interface is wanted. An empty list matches every name."""
        matches = name in self.tokens if self.exact else name.startswith(self.tokens)
        return (not self.tokens or matches) != self.exclude


def parse_pattern(value: str) -> NamePattern:
    """Read `[^][=]name[:port],...`; nothing is trimmed, at most 16 names count."""
    rest = value.removeprefix("^")
    names = rest.removeprefix("=").split(",")
    tokens = [name.split(":")[0] for name in names]
    return NamePattern(
        value.startswith("^"), rest.startswith("="), tuple([t for t in tokens if t][:_MOST_INTERFACES])
    )


def nccl_choice(
    interfaces: Sequence[Interface], env: Mapping[str, str], version: Version | None
) -> InterfaceChoice:
    """What NCCL's bootstrap and NET/Socket take. `env` is the effective environment, nccl.conf included."""
    node = _NodeInterfaces(interfaces, env, version or _NEWEST)
    group, reason = node.network()
    if version is None:
        reason += "; the NCCL version is not known, the rules of 2.28.3 and later are assumed"
    bootstrap, problem = (group[0] if group else None), ""
    if "NCCL_COMM_ID" in env:
        bootstrap = node.near_comm_id()
        if bootstrap is None and node.comm_id:
            problem = f"no interface shares a subnet with NCCL_COMM_ID={env['NCCL_COMM_ID']}"
    if not group:
        problem = reason
    return InterfaceChoice(tuple(group), bootstrap, reason, problem)


class _NodeInterfaces:
    """The interfaces of one node as one version of NCCL sees them."""

    def __init__(self, interfaces: Sequence[Interface], env: Mapping[str, str], version: Version) -> None:
        self.interfaces = interfaces
        self.env = env
        self.modern = version >= RUNNING_AND_VIRBR_SINCE
        self.inverted = _INVERTED_SUBNET[0] <= version <= _INVERTED_SUBNET[1]
        self.comm_id, self.scope = _comm_id_address(env.get("NCCL_COMM_ID", ""))
        self.family = {"AF_INET": "ipv4", "AF_INET6": "ipv6"}.get(env.get("NCCL_SOCKET_FAMILY", ""))

    def network(self) -> tuple[list[Chosen], str]:
        """The winning group and the reason; an empty group with the reason why."""
        wanted = self.env.get("NCCL_SOCKET_IFNAME", "")
        if len(wanted) > 1:
            chosens = self.find(parse_pattern(wanted))
            verb = "selects" if chosens else "matches no usable interface of"
            names = [c.name for c in chosens] or [i.name for i in self.interfaces]
            return (
                chosens,
                f"{assigned('NCCL_SOCKET_IFNAME', wanted)} {verb} {', '.join(names) or 'a node without any'}",
            )
        ignored = "a one-letter NCCL_SOCKET_IFNAME is ignored; " if wanted else ""
        chosens, reason = self.automatic()
        return chosens, ignored + reason

    def automatic(self) -> tuple[list[Chosen], str]:
        """NCCL's own order: the first group that is not empty wins."""
        if chosens := self.find(parse_pattern("ib")):
            return chosens, "names that start with ib come first"
        if len(comm_id := self.env.get("NCCL_COMM_ID", "")) > 1 and (near := self.near_comm_id()):
            inverted = " (this version compares the wrong way round)" if self.inverted else ""
            return [near], f"it matches the subnet of NCCL_COMM_ID={comm_id}{inverted}"
        last = ("docker", "lo", "virbr") if self.modern else ("docker", "lo")
        if chosens := self.find(parse_pattern("^" + ",".join(last))):
            return chosens, f"all but {', '.join(last)} in the order of the system"
        for prefix in last:
            if chosens := self.find(parse_pattern(prefix)):
                return chosens, f"nothing better than {prefix} is there"
        family = f" of NCCL_SOCKET_FAMILY={self.env['NCCL_SOCKET_FAMILY']}" if self.family else ""
        return [], f"no interface is running with an address{family}"

    def find(self, pattern: NamePattern) -> list[Chosen]:
        """The wanted interfaces, each once with its first address: IPv4 before IPv6, as getifaddrs gives them."""
        by_name: dict[str, Chosen] = {}
        for interface, address in in_system_order(self.interfaces):
            running = value_or(interface.running, True) or not self.modern
            allowed = self.family in (None, address.family) and address.address != "::1"
            if running and allowed and pattern.takes(interface.name):
                by_name.setdefault(interface.name, Chosen(interface.name, address.address))
        return list(by_name.values())[:_MOST_INTERFACES]

    def near_comm_id(self) -> Chosen | None:
        """The first address in the subnet of NCCL_COMM_ID, whatever its state; a name cannot be resolved here."""
        remote = self.comm_id
        for interface, address in in_system_order(self.interfaces):
            local = _network(address)
            if remote is None or local is None or local.version != remote.version:
                continue
            link = interface.name if local.version == 6 and local.is_link_local else ""
            same = remote in local and self.scope == link
            if same != (self.inverted and remote.version == 4):
                return Chosen(interface.name, address.address)
        return None


def in_system_order(interfaces: Sequence[Interface]) -> Iterator[tuple[Interface, Address]]:
    """Every address as getifaddrs(3) lists them: those of IPv4 first, then those of IPv6."""
    for family in ("ipv4", "ipv6"):
        for interface in interfaces:
            for address in value_or(interface.addresses, []):
                if address.family == family:
                    yield interface, address


IP = ipaddress.IPv4Address | ipaddress.IPv6Address


def _comm_id_address(value: str) -> tuple[IP | None, str]:
    """The address in `ipv4:port` or `[ipv6%interface]:port`, and its interface."""
    end = "]" if value.startswith("[") else ":"
    host, _, scope = value.removeprefix("[").partition(end)[0].partition("%")
    try:
        return ipaddress.ip_address(host), scope
    except ValueError:
        return None, ""


def _network(address: Address) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(f"{address.address.split('%')[0]}/{address.prefix}", strict=False)
    except ValueError:
        return None


def gloo_choice(
    interfaces: Sequence[Interface], env: Mapping[str, str], own_name: Resolution | Unread
) -> InterfaceChoice:
    """What torch's gloo takes: GLOO_SOCKET_IFNAME, else the node's own name, else loopback."""
    wanted = env.get("GLOO_SOCKET_IFNAME", "")
    if len(wanted) > 1:
        return _gloo_named(interfaces, wanted)
    if isinstance(own_name, Unread):
        problem = f"what this node's own name resolves to is not known: {own_name.why}"
        return InterfaceChoice((), None, problem, problem)
    local = {address.address: interface.name for interface, address in in_system_order(interfaces)}
    for address in own_name.addresses:
        name = local.get(address) or ("lo" if address.startswith("127.") or address == "::1" else None)
        if name:
            chosen = Chosen(name, address)
            return InterfaceChoice((chosen,), chosen, f"the own name {own_name.name} resolves to {address}")
    return _gloo_loopback(own_name)


def _gloo_named(interfaces: Sequence[Interface], wanted: str) -> InterfaceChoice:
    first: dict[str, Chosen] = {}
    for interface, address in in_system_order(interfaces):
        first.setdefault(interface.name, Chosen(interface.name, address.address))
    names = [name for name in wanted.split(",") if name]
    missing = [name for name in names if name not in first]
    used = tuple(first[name] for name in names if name in first)
    if missing or not used:
        named = assigned("GLOO_SOCKET_IFNAME", wanted)
        problem = f"{named}: no interface with an address is named {' or '.join(missing) or ','}"
        return InterfaceChoice((), None, problem, problem)
    return InterfaceChoice(used, used[0], f"GLOO_SOCKET_IFNAME={wanted} names it")


def _gloo_loopback(own_name: Resolution) -> InterfaceChoice:
    chosen = Chosen("lo", "127.0.0.1")
    addresses = ", ".join(own_name.addresses) or "nothing"
    reason = (
        f"the own name {own_name.name} resolves to no address of this node ({addresses}), so gloo takes loopback"
    )
    return InterfaceChoice((chosen,), chosen, reason)
