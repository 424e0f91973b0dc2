"""The network that a job would take on each node: the choice, its interface, its subnet, and routes to peers."""

from __future__ import annotations

import ipaddress
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from ncclcheck.probes.facts import Address, Cluster, Interface, Node, Route, Unread, at, known, replace, value_or
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.subjects.nccl import variables
from ncclcheck.reports.subjects.nccl.choice import InterfaceChoice, gloo_choice, nccl_choice
from ncclcheck.reports.subjects.nodes import containers

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_DEFAULT = ("0.0.0.0/0", "::/0")
_REAL = {"physical", "bond", "vlan", "ipoib", "macvlan"}


@dataclass(frozen=True)
class LanPlace:
    """Where a node stands on the job's network."""

    node: str
    interface: Interface
    address: str
    network: IPNetwork

    @property
    def interface_address(self) -> Address:
        """The address with its prefix length, as its interface holds it."""
        family: Literal["ipv4", "ipv6"] = "ipv6" if self.network.version == 6 else "ipv4"
        return Address(family=family, address=self.address, prefix=self.network.prefixlen)


class SortedAddresses:
    """Addresses of many nodes, in order: how many lie in a subnet is found without a look at each."""

    def __init__(self, listed: Iterable[str]) -> None:
        self._ordered: dict[int, list[int]] = {4: [], 6: []}
        for address in map(ipaddress.ip_address, listed):
            self._ordered[address.version].append(int(address))
        for numbers in self._ordered.values():
            numbers.sort()

    def within(self, network: IPNetwork) -> int:
        """How many of them are in this subnet."""
        numbers = self._ordered[network.version]
        first, last = int(network.network_address), int(network.broadcast_address)
        return bisect_right(numbers, last) - bisect_left(numbers, first)


def interfaces(node: Node) -> list[Interface]:
    """The interfaces of a node of which `needs` has asked for the list."""
    return known(known(node.network).interfaces)


@derived
def choice_of_nccl(node: Node) -> InterfaceChoice:
    """What NCCL would take on this node."""
    return nccl_choice(interfaces(node), variables.values(node), variables.nccl_version(node))


@derived
def choice_of_gloo(node: Node) -> InterfaceChoice:
    """What gloo would take on this node."""
    return gloo_choice(interfaces(node), variables.values(node), at(node, "host.own_name"))


def choice_of_job(cluster: Cluster, node: Node) -> InterfaceChoice:
    """The job's choice: NCCL's, but gloo's where the job uses gloo and was told the interface."""
    for_gloo = "GLOO_SOCKET_IFNAME" in variables.values(node)
    return choice_of_gloo(node) if for_gloo and uses_gloo(cluster) else choice_of_nccl(node)


def meant(cluster: Cluster, node: Node) -> str:
    """The interface that advice names: the one that the job's backend takes by itself, or was told to take."""
    choices = [choice_of_gloo(node)] * uses_gloo(cluster) + [choice_of_nccl(node)]
    taken = [
        choice.bootstrap for choice in choices if choice.bootstrap and not is_loopback(choice.bootstrap.address)
    ]
    return taken[0].name if taken else ""


@derived
def uses_gloo(cluster: Cluster) -> bool:
    """Whether the job's backend is gloo; before a job, whether `auto` would take it: no node has a usable GPU."""
    if cluster.job.backend or cluster.job.backend_asked != "auto":
        return "gloo" in (cluster.job.backend, cluster.job.backend_asked)
    usable = [at(node, "gpus.usable") for node in cluster.nodes]
    return all(n == 0 or (isinstance(n, Unread) and n.kind == "absent") for n in usable)


def links(cluster: Cluster) -> list[LanPlace]:
    """The nodes that have a choice at all; NET001 speaks of the others."""
    chosen = (link(node, choice_of_job(cluster, node)) for node in cluster.nodes)
    return [card for card in chosen if card]


def read_links(cluster: Cluster) -> list[LanPlace]:
    """Of the nodes whose interfaces were read; a rule about measurements asks for no facts."""
    read = [node for node in cluster.nodes if not isinstance(at(node, "network.interfaces"), Unread)]
    return links(replace(cluster, nodes=read))


def link(node: Node, choice: InterfaceChoice) -> LanPlace | None:
    """The interface over which the ranks of this node meet."""
    return _link_of_nccl(node) if choice is choice_of_nccl(node) else _link(node, choice)


@derived
def _link_of_nccl(node: Node) -> LanPlace | None:
    """Most rules ask for it, of every node."""
    return _link(node, choice_of_nccl(node))


def _link(node: Node, choice: InterfaceChoice) -> LanPlace | None:
    chosen = choice.bootstrap
    for interface in interfaces(node) if chosen else ():
        for address in value_or(interface.addresses, []):
            is_it = chosen and (interface.name, address.address) == (chosen.name, chosen.address)
            if is_it and (network := network_of(address)):
                return LanPlace(node.name, interface, address.address, network)
    return None


# Addresses whose subnet is kept: 10,000 nodes have 13 each. With half as many, each was worked out at every call.
_MOST_ADDRESSES = 2**18


@lru_cache(maxsize=_MOST_ADDRESSES)
def network_of(address: Address) -> IPNetwork | None:
    """The subnet of an address, one object for all that lie in it; None for what nobody can read as one."""
    try:
        network = ipaddress.ip_network(f"{address.address}/{address.prefix}", strict=False)
    except ValueError:
        return None
    return _network(str(network))


@lru_cache(maxsize=65536)
def _network(text: str) -> IPNetwork:
    return ipaddress.ip_network(text)


@derived
def global_networks(interface: Interface) -> list[tuple[Address, IPNetwork]]:
    """The addresses that are good beyond this machine and this wire, with their subnets."""
    pairs = ((address, network_of(address)) for address in value_or(interface.addresses, []))
    return [(address, net) for address, net in pairs if net and not (net.is_loopback or net.is_link_local)]


@lru_cache(maxsize=_MOST_ADDRESSES)
def is_loopback(address: str) -> bool:
    """127.0.0.0/8 and ::1."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=_MOST_ADDRESSES)
def is_routable(address: str) -> bool:
    """Neither loopback nor link-local."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified)


def is_real(interface: Interface, others: Sequence[Interface]) -> bool:
    """Whether it leads out of the machine: hardware, or a bridge that has hardware as a member."""
    if interface.kind != "bridge":
        return interface.kind in _REAL
    members = {*value_or(interface.members, [])}
    return any(other.kind in _REAL for other in others if other.name in members)


def leads_out(node: Node, interface: Interface) -> bool:
    """Whether other nodes can be reached over it: real, or the veth by which a pod is on the cluster's network."""
    if is_real(interface, interfaces(node)):
        return True
    pod = "kubernetes" in containers.runtimes(node)
    return interface.kind == "veth" and pod and interface.name in by_default(node)


def by_default(node: Node) -> set[str]:
    """The interfaces that a default route leads to; where no route was read, all."""
    routes = at(node, "network.routes")
    if isinstance(routes, Unread):
        return {interface.name for interface in interfaces(node)}
    return {route.interface for route in routes if route.destination in _DEFAULT}


@derived
def is_usable(interface: Interface) -> bool:
    """Up, running, with an address that is good beyond this wire."""
    ready = value_or(interface.up, True) and value_or(interface.running, True)
    return ready and bool(global_networks(interface))


@dataclass(frozen=True)
class RouteTo:
    """How a node reaches an address. gateway is empty where the peer is on the link."""

    interface: str
    gateway: str


class Routes:
    """The routes of one node, made ready for many look-ups: numbers, the best one first."""

    def __init__(self, node: Node) -> None:
        listed = at(node, "network.routes")
        ready = [usable for route in ([] if isinstance(listed, Unread) else listed) if (usable := _ready(route))]
        self._routes = sorted(ready, key=lambda entry: (-entry.mask, entry.route.metric))
        self.signature = tuple(self._routes)

    def way(self, version: int, peer: int) -> RouteTo | None:
        """The longest prefix, then the lowest metric, as the kernel does it without policy rules."""
        route = self.route(version, peer)
        return RouteTo(route.interface, route.gateway) if route else None

    def route(self, version: int, peer: int) -> Route | None:
        """The route itself that such a way is by."""
        for of_version, base, mask, route in self._routes:
            if of_version == version and peer & mask == base:
                return route
        return None

    def within(self, network: IPNetwork) -> list[Route]:
        """The routes to a subnet or to a part of it."""
        first, mask = int(network.network_address), int(network.netmask)
        return [
            route.route
            for route in self._routes
            if route.version == network.version and route.mask >= mask and route.base & mask == first
        ]


class _Ready(NamedTuple):
    version: int
    base: int
    mask: int
    route: Route


@lru_cache(maxsize=65536)
def _ready(route: Route) -> _Ready | None:
    try:
        network = ipaddress.ip_network(route.destination)
    except ValueError:
        return None
    return _Ready(network.version, int(network.network_address), int(network.netmask), route)
