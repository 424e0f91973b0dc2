"""Nodes behind network address translation: they reach the others, and nobody reaches the address that they tell.

A container on its host's private bridge, or a VM behind its hypervisor. The healthy nodes need no route to such an
address: it means something on its own host alone, and another host may have the same.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster, Connect, value_or
from ncclcheck.reports.judgement.findings import Finding, Where, admin, fail, seen, you
from ncclcheck.reports.subjects.addresses.names.master import holders_of
from ncclcheck.reports.subjects.failures.held_up import holder
from ncclcheck.reports.subjects.links.reached import reached
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import fold_names


@dataclass(frozen=True)
class Hidden:
    """A node, the address that it tells the others, and the one under which they see it."""

    node: str
    device: str
    address: str
    seen_as: str
    peers: tuple[str, ...]


def hidden(cluster: Cluster) -> list[Hidden]:
    """Each node that connects to others under an address that it does not have, and that none of them reaches."""
    reach = reached(cluster)
    if reach is None:
        return []
    result: dict[str, Hidden] = {}
    for (a, b), peer in reach.seen.items():
        back = reach.seen.get((b, a))
        source, seen_as = value_or(peer.source, ""), value_or(peer.seen_as, "")
        if (
            source
            and seen_as not in ("", source)
            and _connects(peer.connect)
            and back is not None
            and back.address == source
            and _is_private(source)
            and not holder(cluster, a, seen_as)
            and not any(_came_in(reach.tries, a))
        ):
            known = result.get(a)
            peers = (*(known.peers if known else ()), b)
            result[a] = Hidden(a, reach.interface(a), source, seen_as, peers)
    return list(result.values())


def _connects(connect: object) -> bool:
    return isinstance(connect, Connect) and connect.outcome == "ok"


def _came_in(tries: dict[str, list[tuple[str, bool]]], node: str) -> Iterator[bool]:
    """Whether each connection that was tried to a node passed."""
    return (passed for of_one in tries.values() for peer, passed in of_one if peer == node)


def _is_private(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_private


def findings(cluster: Cluster, all_hidden: list[Hidden]) -> Iterator[Finding]:
    """One a node."""
    yield from (_finding(cluster, nat) for nat in all_hidden)


def _finding(cluster: Cluster, nat: Hidden) -> Finding:
    host = next(iter(holders_of(cluster, [nat.seen_as])), "")
    whose = f"the address of {host}" if host else "an address that it does not have"
    others = fold_names(nat.peers)
    sees = "see" if len(nat.peers) > 1 else "sees"
    near = _job_network(cluster, nat)
    wire = f" in {near}" if near else ""
    return fail(
        Where(node=nat.node, device=nat.device or None),
        f"{nat.node} is behind NAT: it gives the others {nat.address} ({nat.device}), which none of them can "
        "reach; "
        f"{others} {sees} it come from {nat.seen_as}, {whose}. It is a container or a VM on a private network of "
        "its "
        "host",
        why="It connects to the others, so that the rendezvous works; gloo, NCCL and torchrun then connect to the "
        "address that it tells, on random ports, and wait until a time-out.",
        owner="node",
        evidence=[
            seen(f"getsockname(2) on {nat.node}", nat.address),
            seen(f"getpeername(2) on {nat.peers[0]}", nat.seen_as),
            seen("TCP connect", f"{nat.node} to {others} passes; to {nat.node} ({nat.address}) none passes"),
        ],
        fix=[
            you(
                f"Start {nat.node}'s container in its host's own network; publishing ports does not do, for the "
                "ports "
                "are random. Nothing is to be changed on the other nodes.",
                "docker run --network host ...   # Podman alike; Kubernetes: hostNetwork: true",
            ),
            admin(
                f"Or give the container or VM an interface on the job's network and an address{wire}: a bridge "
                "with "
                "the host's card in it, macvlan or SR-IOV. NIC is the host's card, PID a process of the "
                "container.",
                f"ip link add link NIC name {nat.device or 'eth0'}m type macvlan mode bridge && "
                f"ip link set {nat.device or 'eth0'}m netns PID   # on the host of {nat.node}",
            ),
        ],
    )


def _job_network(cluster: Cluster, nat: Hidden) -> str:
    """The subnet of the others."""
    networks = {str(link.network) for link in lan.links(cluster) if link.node in nat.peers}
    return networks.pop() if len(networks) == 1 else ""
