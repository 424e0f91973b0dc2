"""Nodes that own an address which another node has on the job's network: what they send there stays at home."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, Where, admin, fail, seen, you
from ncclcheck.reports.subjects.nccl import lan


def findings(cluster: Cluster) -> Iterator[Finding]:
    """One for every interface that has the address of another node's chosen one, and is not chosen itself."""
    links = {link.address: link for link in lan.links(cluster) if not lan.is_loopback(link.address)}
    chosen = {(link.node, link.interface.name) for link in lan.links(cluster)}
    for node in cluster.nodes:
        for interface in lan.interfaces(node):
            for address, _ in lan.global_networks(interface):
                owner = links.get(address.address)
                if owner is None or owner.node == node.name or (node.name, interface.name) in chosen:
                    continue
                if interface.up is not False:  # of an interface that is down the kernel owns no address
                    yield _captured(node.name, interface.name, address.prefix, owner)


def _captured(node: str, device: str, prefix: int, owner: lan.LanPlace) -> Finding:
    address, theirs = owner.address, owner.interface.name
    return fail(
        Where(node=node, device=device, peer=owner.node),
        f"{device} of {node} has {address}, the address of {theirs} of {owner.node}",
        why=f"What {node} sends to {owner.node} never leaves {node}; what comes from there is dropped as forged.",
        owner="node",
        evidence=[
            seen(f"getifaddrs on {node}", f"{device} {address}/{prefix}"),
            seen(f"getifaddrs on {owner.node}", f"{theirs} {address}"),
        ],
        fix=[
            admin(
                "Give it another subnet (Docker: `bip` in /etc/docker/daemon.json), or take the address away.",
                f"ip addr del {address}/{prefix} dev {device}",
            ),
            you("See where packets for that node go.", f"ip route get {address}   # on {node}"),
        ],
    )
