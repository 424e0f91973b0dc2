"""Connections that the sending host itself keeps back: by a route or rule that refuses, by its own filter.

The network and the peer have no part in them. What comes in to such a node fails as well where its answers are
kept back, so both directions are explained.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from shlex import quote

from ncclcheck.probes.facts import Cluster, KeptBy, Node, PolicyRule, RefusingRoute, at, value_or
from ncclcheck.reports.judgement.findings import Evidence, Finding, Remedy, Where, admin, fail, seen, you
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.links.reached import Pair, Reached
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import fold_names

_WHY = "Neither the network nor the peer has a part in it. The ranks wait for each other, half an hour by default."
_IP = ipaddress.IPv4Address | ipaddress.IPv6Address
_ORDER: tuple[KeptBy, ...] = ("route", "filter", "resources")


@dataclass(frozen=True)
class HeldBack:
    """A node that keeps back what it sends to these peers."""

    node: Node
    by: KeptBy
    pairs: tuple[Pair, ...]


def kept(cluster: Cluster, reached: Reached, bad: Collection[Pair]) -> list[HeldBack]:
    """One for each node and cause, in the order of the nodes."""
    nodes = {node.name: node for node in cluster.nodes}
    by_cause: dict[tuple[str, KeptBy], list[Pair]] = {}
    for pair in sorted(bad):
        if reached.connects[pair].kept in _ORDER:
            by_cause.setdefault((pair[0], reached.connects[pair].kept), []).append(pair)
    return [HeldBack(nodes[name], by, tuple(pairs)) for (name, by), pairs in by_cause.items()]


def findings(
    reached: Reached, all_kept: Sequence[HeldBack], links: Mapping[str, lan.LanPlace]
) -> Iterator[Finding]:
    """One for each of them."""
    for held_back in all_kept:
        a, b = held_back.pairs[0]
        address = reached.seen[a, b].address
        why = _CAUSES[held_back.by](held_back.node, address, links.get(a))
        peers = fold_names(peer for _, peer in held_back.pairs)
        outcome = f"{reached.connects[a, b].detail}; {_HOW[held_back.by]}"
        yield fail(
            Where(node=a, device=reached.interface(a) or None),
            f"{a} itself does not send to {peers}: {why.words}",
            why=_WHY,
            owner="node",
            evidence=[
                seen(f"TCP connect from {a} to {b} ({address})", outcome),
                *why.evidence,
            ],
            fix=list(why.fix),
        )


_HOW: Mapping[KeptBy, str] = {
    "route": "a UDP socket, by which nothing is sent, gets no route to it either",
    "filter": "the kernel here never got the packet to its interface (TCP_INFO), or forbade the call",
    "resources": "the kernel here had nothing left to send it from",
}


@dataclass(frozen=True)
class HoldingCause:
    """In words, and what removes it."""

    words: str
    evidence: tuple[Evidence, ...]
    fix: tuple[Remedy, ...]


def by_route(node: Node, address: str, link: lan.LanPlace | None = None) -> HoldingCause:
    """The rule, else the route, that refuses this address."""
    peer = ipaddress.ip_address(address.partition("%")[0])
    see = you("See which route the kernel takes.", f"ip route get {quote(str(peer))}   # on {quote(node.name)}")
    if by_rule := _by_rule(node, peer, link):
        return replace(by_rule, fix=(*by_rule.fix, see))
    refusing = [
        refusal for refusal in value_or(at(node, "network.refusing"), []) if _holds(refusal.destination, peer)
    ]
    if refusing:
        route = max(refusing, key=lambda refusal: _network(refusal).prefixlen)
        return HoldingCause(
            f"its route `{_line(route)}` refuses it",
            (seen(f"ip route of {node.name}", _line(route)),),
            (admin("Take the route away, here and in the network configuration.",
                   f"ip{' -6' if peer.version == 6 else ''} route del {_quoted(_line(route))}"), see),
        )  # fmt: skip
    return HoldingCause(
        "its routes and policy rules give no route there",
        (),
        (see, admin("Look for a rule or route that refuses it.", "ip rule show", "ip route show table all")),
    )


def _by_rule(node: Node, peer: _IP, link: lan.LanPlace | None) -> HoldingCause | None:
    """The first policy rule that refuses what is sent to a peer; of a protocol or some ports alone, or all."""
    own = ipaddress.ip_address(link.address) if link else None
    rule = next(
        (policy for policy in value_or(at(node, "network.rules"), []) if _refuses(policy, peer, own)), None
    )
    if rule is None:
        return None
    line = f"{rule.selector} {rule.action}"
    family = " -6" if rule.version == 6 else ""
    return HoldingCause(
        f"its policy rule `{line}` (priority {rule.priority}) refuses it",
        (seen(f"ip{family} rule of {node.name}", f"{rule.priority}: {line}"),),
        (admin("Take the rule away, here and where it is made.",
               f"ip{family} rule del pref {rule.priority} {_quoted(line)}"),),
    )  # fmt: skip


def _refuses(rule: PolicyRule, peer: _IP, own: _IP | None) -> bool:
    """Whether a rule refuses what is sent to a peer; what else it asks for (ports, users) is not looked at."""
    if rule.version != peer.version or rule.action not in ("blackhole", "unreachable", "prohibit"):
        return False
    words = rule.selector.split()
    source = next((word for before, word in pairwise(words) if before == "from"), "all")
    fits = not rule.destination or _holds(rule.destination, peer)
    if source != "all" and own is not None and own.version == peer.version:
        fits = fits and _holds(source, own)
    return fits != (words[:1] == ["not"]) and "iif" not in words


def _holds(network: str, address: _IP) -> bool:
    """Whether it is a network with this address in it; records of other nodes may hold anything."""
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _quoted(line: str) -> str:
    """For a shell: the kernel lets an interface have any name without a blank and a slash."""
    return " ".join(map(quote, line.split()))


def _network(route: RefusingRoute) -> lan.IPNetwork:
    return ipaddress.ip_network(route.destination, strict=False)


def _line(route: RefusingRoute) -> str:
    table = "" if route.table == "main" else f" table {route.table}"
    return f"{route.kind} {route.destination}{table}" + (f" metric {route.metric}" if route.metric else "")


def _by_filter(node: Node, address: str, link: lan.LanPlace | None) -> HoldingCause:
    """A rule of routing that refuses TCP or some ports alone looks the same: a UDP socket gets its route."""
    if by_rule := _by_rule(node, ipaddress.ip_address(address.partition("%")[0]), link):
        return by_rule
    own = firewall.harmful(node, "output")
    if not own:
        return HoldingCause(
            "its own packet filter drops what it sends, or a BPF program, SELinux or seccomp forbids it",
            (),
            (admin("Look at what leaves this host, and let the job's network through.",
                   "nft list ruleset", "iptables -S OUTPUT", "ip rule show", "bpftool cgroup tree",
                   "ausearch -m avc -ts recent"),),
        )  # fmt: skip
    return HoldingCause(
        f"its own packet filter does not let it out ({firewall.shown(own[0])})",
        tuple(firewall.on_node(node.name, chain) for chain in own[:4]),
        (firewall.let_pass(own, "output", _wide(address, link)),),
    )


def _wide(address: str, link: lan.LanPlace | None) -> str:
    """The job's subnet where the peer is in it, else its address alone."""
    inside = link is not None and ipaddress.ip_address(address.partition("%")[0]) in link.network
    return str(link.network) if link is not None and inside else address


def _by_resources(*_: object) -> HoldingCause:
    return HoldingCause(
        "it has no port, file descriptor or memory left to send from",
        (),
        (
            you("See who holds what.", "ss -s", "ulimit -n", "cat /proc/sys/net/ipv4/ip_local_port_range"),
            admin("Let the range of ports be the kernel's own.",
                  'sysctl -w net.ipv4.ip_local_port_range="32768 60999" net.ipv4.ip_local_reserved_ports=""'),
        ),
    )  # fmt: skip


def cause(node: Node, by: KeptBy, address: str) -> HoldingCause:
    """Why a node does not send to an address, where its subnet plays no part."""
    return _CAUSES[by](node, address, None)


_CAUSES: Mapping[KeptBy, Callable[[Node, str, lan.LanPlace | None], HoldingCause]] = {
    "route": by_route,
    "filter": _by_filter,
    "resources": _by_resources,
}
