"""Nodes on which no port could be opened at the address that the job would use."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Node, NoDoor, PortRange, at, value_or
from ncclcheck.reports.judgement.findings import Finding, Where, admin, fail, seen, unknown, you
from ncclcheck.reports.subjects.nccl import lan

_NOT_OURS = "Cannot assign requested address"  # EADDRNOTAVAIL


def findings(cluster: Cluster) -> Iterator[Finding]:
    """Nodes that could open no port on their address of the job's network, and why."""
    links = {link.node: link for link in lan.links(cluster)}
    hosts = {node.name: node for node in cluster.nodes}
    yield from (
        _no_door(hosts[no_door.node], links[no_door.node], no_door)
        for no_door in cluster.measurements.no_doors
        if no_door.node in links
    )


def _no_door(node: Node, link: lan.LanPlace, door: NoDoor) -> Finding:
    """Its ranks ask the kernel for the same."""
    ports = value_or(at(node, "system.ports"), PortRange(first=1, last=0))
    held_back = ports.reserved > (ports.last - ports.first + 1) / 2
    if door.why == _NOT_OURS and door.address == link.address:
        gone = bool(door.interfaces) and link.interface.name not in door.interfaces
        return _interface_gone(link, door.interfaces) if gone else _address_gone(link)
    make, why = (
        (fail, "Its ranks cannot listen there either: gloo and NCCL take a port that the kernel chooses.")
        if door.protocol == "TCP"
        else (unknown, "So no node could try it; UDP is not what a job needs.")
    )
    return make(
        Where(node=link.node, device=link.interface.name),
        f"it can open no {door.protocol} port on its own address {door.address}: {door.why}"
        + f" (HST016: net.ipv4.ip_local_reserved_ports holds back {ports.reserved} of them)" * held_back,
        why=why,
        owner="node",
        evidence=[seen(f"bind(2) to port 0 of {door.address}", door.why)],
        fix=[
            you("See how many ports are taken there, and by whom.", "ss -H -tanp | head -20", "ip -br addr"),
            admin("Reserve none of them.", "sysctl -w net.ipv4.ip_local_reserved_ports=")
            if held_back
            else admin(
                "Where the range of ports is small, let it be the kernel's own.",
                'sysctl -w net.ipv4.ip_local_port_range="32768 60999"',
            ),
        ],
    )


def _address_gone(link: lan.LanPlace) -> Finding:
    """It had the address when its facts were read."""
    address = quote(f"{link.address}/{link.network.prefixlen}")
    name = quote(link.interface.name)
    return fail(
        Where(node=link.node, device=link.interface.name),
        f"{link.interface.name} has lost its address {link.address} during the run: it was removed or changed",
        why="Connections that stood hang, for nothing that is sent to the address arrives any more.",
        owner="node",
        evidence=[seen(f"bind(2) to {link.address}", f"{_NOT_OURS}; it had it before")],
        fix=[
            admin(
                "Give it its address back, and see what took it: a DHCP lease that ended, NetworkManager.",
                f"ip addr add {address} dev {name}   # on {link.node}",
                f"journalctl -u NetworkManager -u systemd-networkd --since -15min | tail   # on {link.node}",
            ),
        ],
    )


def _interface_gone(link: lan.LanPlace, left: list[str]) -> Finding:
    """It was there when the facts were read; nothing can be added to it now."""
    name = link.interface.name
    return fail(
        Where(node=link.node, device=name),
        f"the interface {name} with the address {link.address} is gone since the run began",
        why="Connections that stood hang: its driver died or was unloaded, its card fell off the bus, or it was "
        "deleted or renamed.",
        owner="node",
        evidence=[
            seen(f"bind(2) to {link.address}", f"{_NOT_OURS}; it had it before"),
            seen("interfaces that are left", ", ".join(left)),
        ],
        fix=[
            admin(
                "See what took it away, then bring it back: load its driver anew, start the service that makes it "
                "again, or reboot.",
                f"dmesg -T | grep -iE '{name}|pci|link' | tail -20   # on {link.node}",
                f"journalctl -u NetworkManager -u systemd-networkd --since -15min | tail   # on {link.node}",
                f"ip -br link   # on {link.node}",
            ),
            you("Leave the node out until then.", f"#SBATCH --exclude={quote(link.node)}"),
        ],
    )
