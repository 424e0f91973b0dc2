"""Nodes of a join that the endpoint failed, and that came by another address: why, with what all nodes know.

Such a node alone knows what its kernel and its names say, and node rank 0 alone knows its own addresses and its
own packet filter. Here both are at hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import (
    Arrival,
    Cluster,
    Connect,
    Filter,
    Meeting,
    Node,
    at,
    replace,
    value_or,
)
from ncclcheck.reports.judgement.findings import Evidence, Remedy, admin, you
from ncclcheck.reports.subjects.addresses import prefixes
from ncclcheck.reports.subjects.addresses.names import hosts_file, misnamed
from ncclcheck.reports.subjects.addresses.names.master import (
    address_of_node_0,
    another_port,
    holders_of,
    named_anew,
)
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.links.paths import own_way
from ncclcheck.reports.subjects.links.reached import reached
from ncclcheck.reports.text.words.fold import fold_names

_LEADS = {"dnat", "redirect"}


@dataclass(frozen=True)
class CutOffLead:
    """What is wrong, on which node, in words that go on after "they do not reach it: "."""

    node: str
    device: str
    words: str
    fix: tuple[Remedy, ...]
    evidence: tuple[Evidence, ...] = ()


def arrivals(cluster: Cluster, meeting: Meeting) -> list[Arrival]:
    """Those that came by another address, with what of their words may lead to a command."""
    return [
        replace(arrival, unreached=_believed(cluster, meeting, arrival.unreached))
        for arrival in meeting.arrivals
        if arrival.unreached is not None and arrival.outcome == "joined"
    ]


def _believed(cluster: Cluster, meeting: Meeting, claimed: Meeting) -> Meeting:
    """Node rank 0 is where its own facts say. In a join without a secret no stranger names what an admin maps."""
    own = [
        address
        for address in claimed.elsewhere
        if cluster.nodes and cluster.nodes[0].name in holders_of(cluster, [address])
    ]
    if meeting.secret == "none" and claimed.endpoint != meeting.endpoint:
        return replace(claimed, endpoint=meeting.endpoint, resolver=None, elsewhere=[])
    return replace(claimed, elsewhere=own)


def by_cause(cluster: Cluster, came: list[Arrival]) -> list[tuple[CutOffLead | None, list[Arrival]]]:
    """What lies on node rank 0 is said once for all that it keeps away; None: nothing explains it."""
    groups: list[tuple[CutOffLead | None, list[Arrival]]] = []
    for arrival in came:
        assert arrival.unreached is not None
        lead = _cause(cluster, arrival, arrival.unreached)
        same = next((group for known, group in groups if lead is not None and known == lead), None)
        if same is not None:
            same.append(arrival)
        else:
            groups.append((lead, [arrival]))
    return groups


def _cause(cluster: Cluster, arrival: Arrival, met: Meeting) -> CutOffLead | None:
    node = next((node for node in cluster.nodes if node.name == arrival.name), None)
    if node is None:
        return None
    return (
        _by_name(cluster, node, met)
        or _by_own_way(node, met)
        or _by_prefix(cluster, node, met)
        or _led_elsewhere(cluster, node, met)
    )


def by_another_holder(cluster: Cluster, met: Meeting) -> bool:
    """Whether the endpoint names another machine than node rank 0, for all nodes alike: RUN005 says whose.

    Either as an address, or by a name that node rank 0 itself resolves to the same, so that no node's names are
    wrong and nobody is to write node rank 0's address under that name.
    """
    host, own = met.endpoint.rpartition(":")[0].strip("[]"), [_bare(address) for address in met.addresses]
    first = cluster.nodes[0].name if cluster.nodes else ""
    view = cluster.job.meeting.addresses if cluster.job.meeting else []
    agreed = bool({_bare(address) for address in view} & {*own})
    return (host in met.addresses or agreed) and first not in holders_of(cluster, own)


def _by_name(cluster: Cluster, node: Node, met: Meeting) -> CutOffLead | None:
    """The name leads the node to an address that node rank 0 does not have, or to none."""
    first, right = cluster.nodes[0].name, address_of_node_0(cluster)
    resolver = met.resolver
    holders = holders_of(cluster, [_bare(address) for address in met.addresses])
    if resolver is None or not right or first in holders:
        return None
    got = ", ".join(met.addresses) or "nothing"
    whose = f"an address of {fold_names(holders)}" if holders else "an address of no node of this job"
    by = "/etc/hosts" if set(resolver.files) & set(met.addresses) else "its name service"
    mute = [server.address for server in resolver.servers if not server.answered]
    why = f"its name server {mute[0]} does not answer" if mute and not met.addresses else f"by {by}"
    has = f", {whose}" if met.addresses else ""
    line = hosts_file.named(resolver.name, right, [*met.addresses, *resolver.files])
    return CutOffLead(
        node.name,
        "",
        f"{resolver.name} resolves on {node.name} to {got} ({why}){has}, and node rank 0 ({first}) has {right}",
        (
            you("Name node rank 0 by its address.", *named_anew(cluster)),
            admin(
                f"Give {resolver.name} its address in DNS or in /etc/hosts of {node.name}; look at its other "
                "lines too.",
                f"{line}   # on {node.name}",
            ),
        ),
        tuple(misnamed.evidence(met)),
    )


def _by_own_way(node: Node, met: Meeting) -> CutOffLead | None:
    """Its own kernel says why nothing comes back."""
    if met.outcome not in ("silent", "no_route", "unrouted") or met.kept == "filter":
        return None
    cause = next((lead for way in met.ways if (lead := own_way.cause(node, way))), None)
    return CutOffLead(node.name, cause.device, cause.words, cause.fix) if cause else None


def _by_prefix(cluster: Cluster, node: Node, met: Meeting) -> CutOffLead | None:
    """One of the two takes the other for a neighbour on its wire, and it is behind a router (NET003)."""
    first = cluster.nodes[0].name
    if met.outcome != "silent" or first not in holders_of(cluster, [_bare(address) for address in met.addresses]):
        return None
    finding = prefixes.between(cluster, node.name, first)
    if finding is None or finding.where.node is None:
        return None
    words = f"on {finding.where.node} {finding.what}"
    return CutOffLead(
        finding.where.node, finding.where.device or "", words, tuple(finding.remedies), tuple(finding.evidence)
    )


def _led_elsewhere(cluster: Cluster, node: Node, met: Meeting) -> CutOffLead | None:
    """Node rank 0 has the address and listens, and only what comes in for this port is led elsewhere there."""
    first, port = cluster.nodes[0], met.endpoint.rpartition(":")[2]
    reach = reached(cluster)
    peer = reach.seen.get((node.name, first.name)) if reach else None
    tried = peer.connect if peer and peer.address in map(_bare, met.addresses) else None
    chain = next((rule for rule in _leading(first) if _is_about(rule, port)), None)
    others = isinstance(tried, Connect) and tried.outcome == "ok"
    if met.outcome not in ("silent", "no_route", "refused") or (chain is None and not others):
        return None
    passes = " though other ports of it answer" if others else ""
    if chain is not None:
        words = f"a rule on {first.name} leads what comes in for port {port} elsewhere ({firewall.shown(chain)})"
    else:
        words = f"what comes in for port {port} of {first.name} is dropped or led elsewhere,{passes}"
    look = (
        f"docker ps --filter publish={quote(port)}   # on {first.name}",
        f"nft list ruleset | grep -w {quote(port)}; iptables -t nat -S | grep -w {quote(port)}   "
        f"# on {first.name}",
    )
    fix = (
        you("Take another port, on every node the same.", another_port(cluster, port)),
        admin(
            f"Or take away what has the port there: most often a container that was started with -p {port}:...",
            *look,
        ),
    )
    return CutOffLead(first.name, "", words, fix, tuple(_chains(first, chain)))


def _leading(node: Node) -> Iterator[Filter]:
    yield from (
        chain
        for chain in value_or(at(node, "network.filters"), [])
        if chain.hook in ("prerouting", "input") and _LEADS & set(chain.does)
    )


def _is_about(chain: Filter, port: str) -> bool:
    return re.search(rf"\bdport {re.escape(port)}\b", chain.rule) is not None


def _chains(node: Node, chain: Filter | None) -> Iterator[Evidence]:
    if chain is not None:
        yield firewall.on_node(node.name, chain)


def _bare(address: str) -> str:
    return address.partition("%")[0]
