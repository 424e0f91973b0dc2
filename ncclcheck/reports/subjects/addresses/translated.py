"""Nodes that others see under another address than they have: something on the way writes another sender (NAT)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_network
from shlex import quote

from ncclcheck.probes.facts import Cluster, Node, PolicyRule, at, value_or
from ncclcheck.reports.judgement.findings import Finding, Where, admin, fail, note, seen, warn, you
from ncclcheck.reports.subjects.failures import held_up
from ncclcheck.reports.subjects.links.filters import firewall
from ncclcheck.reports.subjects.links.paths import detours
from ncclcheck.reports.subjects.links.reached import Reached, reached
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import fold_names


def findings(cluster: Cluster, reach: Reached, links: Mapping[str, lan.LanPlace]) -> Iterator[Finding]:
    """One a node and address. Within one subnet nobody means it; between subnets a gateway may."""
    hosts = {node.name: node for node in cluster.nodes}
    by_sender: dict[tuple[str, str, str], list[str]] = {}
    for (a, b), peer in reach.seen.items():
        source, seen_as = value_or(peer.source, ""), value_or(peer.seen_as, "")
        if source and seen_as and source != seen_as and a in hosts:
            by_sender.setdefault((a, source, seen_as), []).append(b)
    for (node, source, seen_as), peers in by_sender.items():
        own = firewall.writing(hosts[node], source)
        by_rule = own and all(_leaves_as_meant(reach, node, peer) for peer in peers)
        if (device := held_up.holder(cluster, node, seen_as)) and not by_rule:
            yield _by_another(cluster, hosts[node], device, source, seen_as, peers)
            continue
        near = node in links and all(b in links and links[b].network == links[node].network for b in peers)
        level = warn if near else note
        fix = admin("Leave the job's network out of the translation.", "nft list ruleset", "iptables -t nat -S")
        if own and near:
            fix = firewall.let_pass(own, "output", str(links[node].network))
        sees = "see" if len(peers) > 1 else "sees"
        who = f"{node} itself" if own else "something on the way"
        yield level(
            Where(node=node, device=reach.interface(node) or None),
            f"{fold_names(peers)} {sees} what {node} sends from {source} as coming from {seen_as}: "
            f"{who} writes another sender on it (NAT)",
            why="Who answers to that address, or lets in by address, has to do with another machine.",
            owner="node" if own else "site",
            evidence=[
                seen(f"getpeername(2) on {peers[0]}", seen_as),
                seen(f"getsockname(2) on {node}", source),
                *(firewall.on_node(node, chain) for chain in own[:4]),
            ],
            fix=[fix],
        )


def _leaves_as_meant(reach: Reached, node: str, peer: str) -> bool:
    """Whether the kernel sends to a peer by the chosen interface."""
    return value_or(reach.seen[node, peer].interface, "") == reach.interface(node) != ""


def _by_another(cluster: Cluster, node: Node, device: str, source: str, seen_as: str, peers: list[str]) -> Finding:
    """Nobody translates: it is sent by another interface of its own, as a policy rule or a route wants it."""
    rules = [rule for rule in value_or(at(node, "network.rules"), []) if rule.action.startswith("lookup")]
    slow = detours.slow_words(cluster, node.name, peers)
    reach = reached(cluster)
    address = reach.seen[node.name, peers[0]].address if reach else peers[0]
    return (fail if slow else warn)(
        Where(node=node.name, device=device, peer=peers[0]),
        f"{node.name} sends to {fold_names(peers)} by its {device}, not from {source}: there it is seen as "
        f"{seen_as}{slow}",
        why="The job runs over another network than the chosen one: a tunnel, or a slow one for management.",
        owner="node",
        evidence=[
            seen(f"getpeername(2) on {peers[0]}", seen_as),
            seen(f"addresses of {node.name}", f"{seen_as} is on {device}"),
            *(seen("policy rule", f"{rule.priority}: {rule.selector} {rule.action}") for rule in rules[:4]),
        ],
        fix=[
            admin(
                "Take the rule or route away that leads there, here and in the network configuration.",
                *(f"ip rule del pref {rule.priority}" for rule in rules if _is_for(rule, address)),
            ),
            you("See which it is.", "ip rule", f"ip route get {quote(address)} ipproto tcp dport 29500"),
        ],
    )


def _is_for(rule: PolicyRule, address: str) -> bool:
    """A rule that names the peer, or a network of it: one for all would be more than this case."""
    to = ip_network(rule.destination, strict=False) if rule.destination else None
    return to is not None and ip_address(address) in to
