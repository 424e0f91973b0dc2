"""Interfaces, addresses and routes."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ncclcheck.probes.facts.unread import NOT_RECORDED, Unread


class Address(Struct, frozen=True, kw_only=True):
    """An address of an interface, with its prefix length."""

    family: Literal["ipv4", "ipv6"]
    address: str
    prefix: int


InterfaceKind = Literal[
    "physical", "bond", "vlan", "bridge", "veth", "tunnel", "loopback", "macvlan", "ipoib", "virtual"
]


class Packets(Struct, frozen=True, kw_only=True, tag="packets"):
    """What an interface counted since it was made, both directions. Source: /sys/class/net/NAME/statistics."""

    packets: int
    errors: int
    drops: int


class Interface(Struct, frozen=True, kw_only=True):
    """One network interface, as getifaddrs(3) and /sys/class/net tell it."""

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


class Route(Struct, frozen=True, kw_only=True):
    """One route of the kernel's main table; `gateway` is empty where the peer is on the link."""

    destination: str
    gateway: str
    interface: str
    metric: int


class Neighbour(Struct, frozen=True, kw_only=True, tag="neighbour"):
    """To which hardware address the kernel sends what is for an address on its wire. Source: /proc/net/arp.

    permanent: somebody wrote it; else a machine answered to ARP.
    """

    mac: str
    interface: str
    permanent: bool


class Network(Struct, frozen=True, kw_only=True, tag="network"):
    """Interfaces in getifaddrs(3) order, which is the order in which NCCL considers them."""

    interfaces: list[Interface] | Unread = NOT_RECORDED
    routes: list[Route] | Unread = NOT_RECORDED
