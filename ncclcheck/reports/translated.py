"""Nodes that others see under another address than they have: something on the way writes another sender (NAT)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ncclcheck.probes.facts import Node, value_or
from ncclcheck.reports import firewall, lan
from ncclcheck.reports.findings import Finding, Where, admin, note, seen, warn
from ncclcheck.reports.fold import fold_names
from ncclcheck.reports.reached import Reached


def findings(hosts: Mapping[str, Node], found: Reached, links: Mapping[str, lan.Link]) -> Iterator[Finding]:
    """One a node and address. Within one subnet nobody means it; between subnets a gateway may."""
    told: dict[tuple[str, str, str], list[str]] = {}
    for (a, b), peer in found.seen.items():
        source, seen_as = value_or(peer.source, ""), value_or(peer.seen_as, "")
        if source and seen_as and source != seen_as and a in hosts:
            told.setdefault((a, source, seen_as), []).append(b)
    for (node, source, seen_as), peers in told.items():
        near = node in links and all(b in links and links[b].network == links[node].network for b in peers)
        own = firewall.writing(hosts[node])
        level = warn if near else note
        fix = admin("Leave the job's network out of the translation.", "nft list ruleset", "iptables -t nat -S")
        if own and near:
            fix = firewall.let_pass(own, "output", str(links[node].network))
        sees = "see" if len(peers) > 1 else "sees"
        who = f"{node} itself" if own else "something on the way"
        yield level(
            Where(node=node, device=found.interface(node) or None),
            f"{fold_names(peers)} {sees} what {node} sends from {source} as coming from {seen_as}: "
            f"{who} writes another sender on it (NAT)",
            why="Who answers to that address, or lets in by address, has to do with another machine.",
            owner="node" if own else "site",
            evidence=[
                seen(f"getpeername(2) on {peers[0]}", seen_as),
                seen(f"getsockname(2) on {node}", source),
                *(seen(f"nft list ruleset on {node}", firewall.shown(one)) for one in own[:4]),
            ],
            fix=[fix],
        )
