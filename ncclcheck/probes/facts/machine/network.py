"""Interfaces, addresses and routes."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.unread import NOT_RECORDED, Unread


class Address(Struct, frozen=True, kw_only=True):
    """An address of an interface, with its prefix length.

    state: of IPv6 (RFC 4862): tentative, while the kernel looks whether another machine has it, and no packet is
    sent from it; duplicate, where one has.
    """

    family: Literal["ipv4", "ipv6"]
    address: str
    prefix: int
    state: Literal["", "tentative", "duplicate"] = ""


InterfaceKind = Literal[
    "physical", "bond", "vlan", "bridge", "veth", "tunnel", "loopback", "macvlan", "ipoib", "virtual"
]


class Packets(Struct, frozen=True, kw_only=True, tag="packets"):
    """What an interface counted since it was made, both directions. Source: /sys/class/net/NAME/statistics."""

    packets: int
    errors: int
    drops: int


class Interface(Struct, frozen=True, kw_only=True, dict=True):  # its __dict__: what reports derive from it
    """One network interface, as getifaddrs(3) and /sys/class/net tell it. ipv6_off: disable_ipv6 is set.

    downs: how often it lost its link since it was made. rp_filter: how the kernel filters what comes in by it, by
    the route back: 0 not, 1 strictly (it must leave by this interface), 2 loosely (any route will do).
    """

    name: str
    kind: InterfaceKind | Unread = NOT_RECORDED
    up: bool | Unread = NOT_RECORDED
    running: bool | Unread = NOT_RECORDED
    mtu: int | Unread = NOT_RECORDED
    speed_mbit: int | Unread = NOT_RECORDED
    addresses: list[Address] | Unread = NOT_RECORDED
    members: list[str] | Unread = NOT_RECORDED
    driver: str | Unread = NOT_RECORDED
    packets: Packets | Unread = NOT_RECORDED
    mac: str | Unread = NOT_RECORDED
    ipv6_off: bool = False
    downs: int | Unread = NOT_RECORDED
    rp_filter: int | Unread = NOT_RECORDED


class Route(Struct, frozen=True, kw_only=True):
    """One route of the kernel's main table; `gateway` is empty where the peer is on the link."""

    destination: str
    gateway: str
    interface: str
    metric: int


RouteKind = Literal["blackhole", "unreachable", "prohibit", "throw"]


class PolicyRule(Struct, frozen=True, kw_only=True):
    """A policy rule that not every machine has, in the words of ip-rule(8). destination: empty for all."""

    version: Literal[4, 6]
    priority: int
    selector: str
    action: str
    destination: str


class RefusingRoute(Struct, frozen=True, kw_only=True):
    """A route of any table by which the kernel sends nothing."""

    kind: RouteKind
    destination: str
    table: str
    metric: int


class Shaper(Struct, frozen=True, kw_only=True):
    """A queueing discipline that limits what an interface sends, or a policer of what it takes in.

    bytes_per_s: 0 where it tells no rate; of htb that of what no filter sorts.
    """

    interface: str
    kind: str
    root: bool
    bytes_per_s: int
    way: Literal["out", "in"] = "out"


class Filter(Struct, frozen=True, kw_only=True):
    """A chain of the packet filter that can drop, refuse or redirect what a job sends, as nft(8) lists it.

    does: what its rules do to a packet, e.g. drop. rule: the first such rule, shortened; empty where the chain's
    policy does it. slows: the first rule that drops what is above a rate. part: the first that stops a part of the
    packets alone, by their size, number or chance. stateful: it lets packets of connections that are known pass.
    passed: how many rules a packet of an open connection is
    compared with, one by one; 0: not recorded, or fewer than 1,000.
    """

    family: str
    table: str
    chain: str
    hook: str
    does: list[str]
    rule: str = ""
    slows: str = ""
    part: str = ""
    stateful: bool = False
    passed: int = 0


# What on a host kept packets from leaving it; neighbour: no machine on the wire said that it has the address.
KeptBy = Literal["", "route", "filter", "neighbour", "resources"]


class Neighbour(Struct, frozen=True, kw_only=True, tag="neighbour"):
    """To which hardware address the kernel sends what is for an address on its wire. Source: /proc/net/arp.

    permanent: somebody wrote it; else a machine answered to ARP. held_before: it was there before anything was
    sent, and the kernel keeps such an entry for minutes after its machine has gone: it says nothing of now.
    """

    mac: str
    interface: str
    permanent: bool
    held_before: bool = True


HopState = Literal["", "incomplete", "reachable", "stale", "delay", "probe", "failed", "noarp", "permanent"]


class Hop(Struct, frozen=True, kw_only=True):
    """The next machine on a way: a gateway, or the address itself where it is on the wire.

    state: of the kernel's neighbour entry; empty where it has none.
    """

    interface: str
    address: str
    state: HopState = ""


class KernelRoute(Struct, frozen=True, kw_only=True, tag="way"):
    """How this host's own kernel sends to an address: what `ip route get ADDRESS` prints, and what is behind it.

    kind: unicast, local, or as the kernel refuses; empty where it knows no way, error: its word. source: whence.
    destination, table, metric: the route that it took. hops: several where a route has several. routers: where a
    gateway does not answer, those that do of the addresses at which a subnet's router is by custom.
    """

    address: str
    kind: Literal["", "unicast", "local", "broadcast", "blackhole", "unreachable", "prohibit", "throw"] = ""
    error: str = ""
    source: str = ""
    destination: str = ""
    table: str = ""
    metric: int = 0
    hops: list[Hop] = field(default_factory=list)
    routers: list[str] = field(default_factory=list)


class NameServer(Struct, frozen=True, kw_only=True):
    """One of /etc/resolv.conf, asked directly. answers: addresses that it gave, none where it does not know it."""

    address: str
    answered: bool
    answers: list[str] = field(default_factory=list)


class Resolver(Struct, frozen=True, kw_only=True, tag="resolver"):
    """How this host comes by the addresses of a name. seconds: that getaddrinfo(3) took, up to our patience.

    files: what /etc/hosts says. beside: names on other lines of it with one of these addresses. servers: empty
    where nsswitch.conf asks for no DNS. known: other addresses in /etc/hosts, a few, with their names. order: of
    whom nsswitch.conf asks for hosts, as it writes it.
    """

    name: str
    seconds: float
    files: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    servers: list[NameServer] = field(default_factory=list)
    known: dict[str, list[str]] = field(default_factory=dict)
    order: str = ""


class Network(Struct, frozen=True, kw_only=True, tag="network"):
    """Interfaces in getifaddrs(3) order, which is the order in which NCCL considers them.

    forgets_s: after so many seconds without a packet the packet filter knows an open TCP connection no more;
    absent where it follows none. adopts: whether a packet of one that it does not know begins a new one for it.
    """

    interfaces: list[Interface] | Unread = NOT_RECORDED
    routes: list[Route] | Unread = NOT_RECORDED
    rules: list[PolicyRule] | Unread = NOT_RECORDED
    refusing: list[RefusingRoute] | Unread = NOT_RECORDED
    shapers: list[Shaper] | Unread = NOT_RECORDED
    filters: list[Filter] | Unread = NOT_RECORDED
    forgets_s: int | Unread = NOT_RECORDED
    adopts: bool | Unread = NOT_RECORDED
