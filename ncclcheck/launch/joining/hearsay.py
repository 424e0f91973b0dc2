"""What a node tells of its way to node rank 0: somebody's words, until every part of it has its form.

Addresses, names and numbers of it come into sentences and commands of the report on node rank 0.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from ncclcheck.probes.facts import Hop, KernelRoute, Meeting, NameServer, Resolver, replace

_MOST = 64  # of anything: a name has a few addresses, a host a few ways
_MOST_WORDS = 128  # characters: chosen, a sentence; it may be anything
_LONGEST_S = 86400.0  # a day: longer waits are no measurement
_PORT = re.compile(r"[1-9]\d{0,4}")
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")  # what no host name, pod or Slurm node has
_NO_DEVICE = re.compile(r"[^A-Za-z0-9_.:@+-]")
# ipaddress takes any text for the scope of fe80::1%SCOPE.
_SCOPED = re.compile(r"[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.@+-]{1,15})?")


def printable(text: str) -> str:
    """Words of somebody else, none of which steers a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MOST_WORDS])


def name_of_node(text: str) -> str:
    """A name that may stand in a command."""
    return _NO_NAME.sub("_", text[:64]).lstrip("-") or "unnamed"


def sound(meeting: Meeting) -> Meeting:
    """The same, of addresses that are some and words that may be printed. Raises ValueError for what no node says.

    Nothing of it is tried or run; rules judge it as they judge the node's other facts.
    """
    if meeting.resolver and meeting.resolver.name != meeting.endpoint.rpartition(":")[0]:
        raise ValueError("another name was asked for than that of the endpoint")
    return replace(
        meeting,
        endpoint=_endpoint(meeting.endpoint),
        told_by=printable(meeting.told_by),
        detail=printable(meeting.detail),
        addresses=_addresses(meeting.addresses),
        sources=[source and _address(source) for source in meeting.sources[:_MOST]],
        neighbours={
            _address(address): replace(entry, mac=printable(entry.mac), interface=_device(entry.interface))
            for address, entry in [*meeting.neighbours.items()][:_MOST]
        },
        arrivals=[],
        seconds=_seconds(meeting.seconds),
        ways=[_way(way) for way in meeting.ways[:_MOST]],
        resolver=meeting.resolver and _resolver(meeting.resolver),
        elsewhere=_addresses(meeting.elsewhere),
    )


def _endpoint(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise ValueError("an endpoint without a port")
    if host.startswith("["):
        _address(host[1:-1])
    elif not host or len(host) > 253 or host.startswith("-") or _NO_NAME.search(host):
        raise ValueError("an endpoint that is none")
    return text


def _address(text: str) -> str:
    if not _SCOPED.fullmatch(text):
        raise ValueError("it does not appear to be an address")
    ipaddress.ip_address(text)
    return text


def _addresses(some: Iterable[str]) -> list[str]:
    return [_address(address) for address in [*some][:_MOST]]


def _way(way: KernelRoute) -> KernelRoute:
    if way.destination:
        ipaddress.ip_network(way.destination, strict=False)
        _address(way.destination.partition("/")[0])
    return replace(
        way,
        address=_address(way.address),
        error=printable(way.error),
        source=way.source and _address(way.source),
        table=_NO_NAME.sub("_", way.table[:32]).lstrip("-"),
        hops=[_hop(hop) for hop in way.hops[:_MOST]],
        routers=_addresses(way.routers),
    )


def _hop(hop: Hop) -> Hop:
    return replace(hop, interface=_device(hop.interface), address=_address(hop.address))


def _device(name: str) -> str:
    return _NO_DEVICE.sub("_", name[:15]).lstrip("-")


def _resolver(resolver: Resolver) -> Resolver:
    """Files of that node say what somebody wrote into them: what is no address is left out."""
    return replace(
        resolver,
        name=name_of_node(resolver.name),
        seconds=_seconds(resolver.seconds),
        files=_those_that_are(resolver.files),
        beside=[name_of_node(name) for name in resolver.beside[:_MOST]],
        servers=[_server(server) for server in resolver.servers[:_MOST] if _those_that_are([server.address])],
        known={
            address: [name_of_node(name) for name in resolver.known[address][:_MOST]]
            for address in _those_that_are(resolver.known)
        },
    )


def _server(server: NameServer) -> NameServer:
    return replace(server, answers=_those_that_are(server.answers))


def _those_that_are(some: Iterable[str]) -> list[str]:
    addresses = []
    for text in [*some][:_MOST]:
        try:
            addresses.append(_address(text))
        except ValueError:
            continue
    return addresses


def _seconds(number: float) -> float:
    return min(max(number, 0.0), _LONGEST_S)
