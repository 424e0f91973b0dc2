"""Why the name of node rank 0 leads elsewhere here: a stale or swapped line of /etc/hosts, a mute name server."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from shlex import quote

from ncclcheck.probes.facts import Cluster, Meeting, Resolver
from ncclcheck.reports.judgement.findings import Evidence, Remedy, admin, seen, you
from ncclcheck.reports.subjects.addresses.names import hosts_file
from ncclcheck.reports.subjects.addresses.names.master import named_anew
from ncclcheck.reports.subjects.links.paths.own_way import WayCause
from ncclcheck.reports.subjects.nccl import lan

# Seconds that getaddrinfo(3) may take before it is worth a word: resolv.conf(5) gives a mute server 5 s.
_SLOW_S = 2.0


def cause(cluster: Cluster, meeting: Meeting) -> WayCause | None:
    """Where it is certain: node rank 0 answers at another address, or no name server answers at all."""
    resolver = meeting.resolver
    if resolver is None:
        return None
    if meeting.elsewhere:
        return None if _by_another_wire(cluster, meeting) else _elsewhere(meeting, resolver, meeting.elsewhere[0])
    if (
        meeting.outcome == "unresolved"
        and resolver.servers
        and not any(server.answered for server in resolver.servers)
    ):
        return _mute(cluster, resolver)
    return None


def _by_another_wire(cluster: Cluster, meeting: Meeting) -> bool:
    """Whether it answers in another subnet of this node than the one in which its name is: a host with two cards
    has an address in each, and both are right."""
    networks = {
        net
        for node in cluster.nodes
        for interface in lan.interfaces(node)
        for _, net in lan.global_networks(interface)
    }
    named, answers = ({net for net in networks for address in some if ip_address(address.partition("%")[0]) in net}
                      for some in (meeting.addresses, meeting.elsewhere))  # fmt: skip
    return bool(named) and bool(answers) and named.isdisjoint(answers)


def _elsewhere(meeting: Meeting, resolver: Resolver, right: str) -> WayCause:
    got = ", ".join(meeting.addresses) or "nothing"
    by = "by /etc/hosts" if set(resolver.files) & set(meeting.addresses) else "by its name service"
    names = ", ".join(resolver.known.get(right, []))
    source = next((server.address for server in resolver.servers if right in server.answers), "")
    knows = (
        f", as the name server {source} says" if source else f", which /etc/hosts here calls {names}" * bool(names)
    )
    return WayCause(
        f"{resolver.name} resolves here to {got} ({by}), and node rank 0 answers at {right}{knows}",
        "",
        (
            you("Name node rank 0 by its address.", _anew(meeting, right)),
            admin(
                f"Give {resolver.name} its address in /etc/hosts of this node; look at its other lines too.",
                f"{hosts_file.named(resolver.name, right, [*meeting.addresses, *resolver.files])}   # here",
            ),
        ),
    )


def _anew(meeting: Meeting, right: str) -> str:
    port = meeting.endpoint.rpartition(":")[2]
    place = f"[{right}]:{port}" if ":" in right else f"{right}:{port}"
    is_typed = "--rdzv-endpoint" in meeting.told_by
    typed = f"--rdzv-endpoint {quote(place)}" if is_typed else f"export MASTER_ADDR={quote(right)}"
    return f"{typed}   # on every node"


def _mute(cluster: Cluster, resolver: Resolver) -> WayCause:
    servers = [server.address for server in resolver.servers]
    mute = (
        f"none of the name servers {', '.join(servers)} of /etc/resolv.conf answers"
        if len(servers) > 1
        else f"the name server {servers[0]} of /etc/resolv.conf does not answer"
    )
    return WayCause(
        f"{resolver.name} does not resolve, for {mute} this node",
        "",
        (
            you("Give the address of node rank 0 in place of its name.", *named_anew(cluster)),
            *_see(servers),
        ),
    )


def _see(servers: list[str]) -> Iterator[Remedy]:
    yield admin(
        "Check that it is the right server and has a route; or put node rank 0 into /etc/hosts.",
        "cat /etc/resolv.conf   # here",
        *(f"ip route get {quote(server)}   # here" for server in servers),
    )


def doubts(meeting: Meeting) -> Iterator[str]:
    """What is odd and proves nothing: a name on another line of /etc/hosts has the same address."""
    resolver = meeting.resolver
    if resolver is None:
        return
    if meeting.elsewhere and meeting.addresses:
        yield (
            f"node rank 0 runs, for it answers at {meeting.elsewhere[0]} by another network: the path to "
            f"{meeting.addresses[0]} is what fails"
        )
    if resolver.beside and meeting.outcome != "unresolved":
        at = ", ".join(meeting.addresses)
        yield f"{resolver.name} is at {at} here, which /etc/hosts also calls {resolver.beside[0]}"
    if resolver.seconds > _SLOW_S and (
        mute := [server.address for server in resolver.servers if not server.answered]
    ):
        yield f"it took {resolver.seconds:.0f} s to resolve, for the name server {mute[0]} does not answer"


def evidence(meeting: Meeting) -> Iterator[Evidence]:
    """What each source of names says here."""
    resolver = meeting.resolver
    if resolver is None:
        return
    yield seen(f"/etc/hosts for {resolver.name}", ", ".join(resolver.files) or "nothing")
    for server in resolver.servers:
        answer = (", ".join(server.answers) or "it does not know it") if server.answered else "no answer"
        yield seen(f"name server {server.address} for {resolver.name}", answer)
