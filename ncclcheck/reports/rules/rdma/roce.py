"""RDM015 to RDM017: what RoCE needs beside a link and an address: one MTU, one traffic class, routes."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from shlex import quote

from ncclcheck.probes.facts import Cluster, Gid, Interface, Node, Unread, at, value_or
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, admin, note, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import carrying, profiles, wiring
from ncclcheck.reports.subjects.nccl.hca import UsedPort, address_of, is_routable
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements
from ncclcheck.reports.text.words.fold import fold_names

_FULL_MTU = 4096  # bytes, the largest RDMA MTU
_JUMBO = 9000  # bytes, where no other interface shows what the switches pass
_OVERHEAD = 96  # bytes of RoCE headers in a frame, as the kernel reckons them (iboe_get_mtu)
_FAST_GBIT = 100.0  # Gb/s from which on small packets cost speed; chosen


def interface_of(node: Node, port: UsedPort) -> Interface | None:
    """The interface behind the GID that is used, else behind the first one."""
    taken = wiring.gid(node, port)
    gids = [taken.gid] if taken and taken.gid else value_or(port.port.gids, [])
    names = {gid.netdev for gid in gids if isinstance(gid.netdev, str)}
    interfaces = value_or(at(node, "network.interfaces"), [])
    return next((interface for interface in interfaces if interface.name in names), None)


def _active_mtu(mtu: int) -> int:
    """The largest RDMA MTU that fits into an Ethernet frame (iboe_get_mtu of the kernel)."""
    return max((size for size in (256, 512, 1024, 2048, 4096) if size <= mtu - _OVERHEAD), default=256)


@rule(
    "RDM015",
    "RoCE interfaces have the same MTU, large enough for RDMA's 4096 bytes",
    worst=State.WARN,
    needs=("rdma.devices", "network.interfaces"),
    ground=("RDM005", "RDM006"),
)
def mtu(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The MTU of the interface behind each RoCE port that NCCL would use: the same on all nodes, and at least 4200 on
    links of 100 Gb/s and more.

    ## Why it matters
    RDMA takes the largest of 1024, 2048 and 4096 bytes that fits. With Ethernet's 1500 that is 1024: four times
    the packets, and some percent of the speed. Different sizes on two nodes, or a switch between them that passes
    less, end in `IBV_WC_LOC_LEN_ERR` or in a hang with large messages only.

    ## Seen as
    hangs, slow, dies

    ## How we know
    The interface of the GID that NCCL would take, and its MTU. Whether the switches pass it is not seen here:
    `ping -M do -s 8972 PEER` shows it.

    Interfaces of storage and management, over which no GPU sends, are not judged.

    ## Fix
    - **admin** `ip link set NETDEV mtu 9000`, or the size that most of the others have, on all nodes, after the
      switches; the same in netplan or ifcfg. All that uses the interface is touched: a node at 9000 among others
      at 1500 loses NFS and ssh of large packets.
    - **you** exclude the odd node until then.

    ## Source
    NVIDIA/nccl#1524, NVIDIA/dgx-spark-playbooks#103; ip-link(8).
    """
    cards = [
        (node, used, card) for node, used in carrying.roce_ports(cluster) if (card := interface_of(node, used))
    ]
    known = [(node, used, card, card.mtu) for node, used, card in cards if not isinstance(card.mtu, Unread)]
    if not known:
        raise NothingToJudge("the interfaces behind the RoCE ports are not seen")
    sizes: dict[str, set[int]] = {}
    enough = Counter(size for *_, size in known if _active_mtu(size) == _FULL_MTU)
    usual = enough.most_common(1)[0][0] if enough else _JUMBO
    for node, port, card, bytes_ in known:
        sizes.setdefault(node.name, set()).add(bytes_)
        active = _active_mtu(bytes_)
        if active < _FULL_MTU and value_or(port.port.rate_gbit, 0.0) >= _FAST_GBIT:
            yield warn(
                Where(node=node.name, device=port.name),
                f"{card.name} has an MTU of {bytes_}, so RDMA sends packets of {active} bytes",
                why="Small packets cost speed on a fast link.",
                owner="node",
                evidence=[seen(f"MTU of {card.name}", bytes_)],
                fix=_raise_mtu(card.name, bytes_, usual),
            )
    if len(sizes) > 1:
        yield from disagreements(
            {node: ", ".join(map(str, sorted(of_node))) for node, of_node in sizes.items()},
            "the MTU of the RoCE interfaces",
            "MTU",
            level=warn,
            why="Large messages fail or hang between nodes with different sizes.",
            owner="node",
            fix=_raise_mtu("NETDEV", "BYTES", usual),
        )


def _raise_mtu(name: str, now: int | str, usual: int) -> list[Remedy]:
    """To what most of the others have, which the switches pass."""
    text = (
        "Set the same MTU everywhere, the switches first. It touches everything on this interface: where the "
        "others stay at their size, large packets are lost."
    )
    return [admin(text, f"ip link set {name} mtu {usual}   # undo: ip link set {name} mtu {now}")]


@rule(
    "RDM016",
    "RoCE ports have the same traffic class on all nodes",
    worst=State.WARN,
    needs=("rdma.devices",),
    at_least=2,
    between_machines=True,
)
def traffic_class(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The traffic class that the driver gives to RDMA packets by itself is set alike on all nodes, and on links of
    100 Gb/s and more some class is set at all, there or in NCCL_IB_TC.

    ## Why it matters
    RoCE is lossless only in the class for which the switches have flow control. A node that was installed anew
    and lacks the setting sends in the ordinary class: its packets are dropped under load, and the whole job slows
    down with it. NCCL_IB_TC overrides the setting, and NCC005 compares that one.

    ## Seen as
    slow, setting without effect

    ## How we know
    /sys/class/infiniband/HCA/tc/N/traffic_class of each port that NCCL would use, which drivers of DOCA-OFED
    have; the odd node by majority. That none has a class is a note: a fabric may be made for that.

    ## Fix
    - **admin** `cma_roce_tos` and `echo 106 > /sys/class/infiniband/mlx5_0/tc/1/traffic_class` at boot, with the
      class of your site.
    - **you** `export NCCL_IB_TC=106` with the class of your site.

    ## Source
    NCCL user guide, NCCL_IB_TC, and Troubleshooting, RoCE; NVIDIA/nccl#2383.
    """
    by_node: dict[str, set[str]] = {}
    for node, port in carrying.roce_ports(cluster):
        text = port.port.traffic_class
        if not isinstance(text, Unread) or text.kind == "absent":
            by_node.setdefault(node.name, set()).add("not set" if isinstance(text, Unread) else text[:60])
    if not any(of_node != {"not set"} for of_node in by_node.values()):
        fast = any(value_or(used.port.rate_gbit, 0.0) >= _FAST_GBIT for _, used in carrying.roce_ports(cluster))
        if not fast or any("NCCL_IB_TC" in profiles.asked(node) for node in cluster.nodes):
            raise NothingToJudge("no node has a traffic class in sysfs")
        yield _no_class(fold_names(by_node))
        return
    yield from disagreements(
        {node: ", ".join(sorted(of_node)) for node, of_node in by_node.items()},
        "the traffic class of RoCE",
        "/sys/class/infiniband/*/tc/*/traffic_class",
        level=warn,
        why="What a node sends in another class has no flow control, and is dropped under load.",
        owner="node",
        fix=[admin("Set it as on the others.", "cat /sys/class/infiniband/mlx5_0/tc/1/traffic_class")],
    )


def _no_class(names: str) -> Finding:
    return note(
        Where(),
        f"no traffic class is set for RoCE on {names}, in sysfs or by NCCL_IB_TC",
        why="In the ordinary class nothing keeps the switches from dropping packets, unless they were set up so.",
        owner="site",
        evidence=[seen("/sys/class/infiniband/*/tc/*/traffic_class, NCCL_IB_TC", "not set")],
        fix=[you("Ask the site for the class of its lossless queue; 106 is DSCP 26, the usual one.",
                 "ncclcheck bench --with NCCL_IB_TC=106")],
    )  # fmt: skip


@rule(
    "RDM017",
    "the RoCE addresses of all nodes are routed to each other",
    worst=State.WARN,
    needs=("rdma.devices", "network.interfaces", "network.routes"),
    at_least=2,
    between_machines=True,
)
def routed(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    For the HCA of the same name on two nodes: the address behind the GID of one is in a subnet of the other's
    interface, or a route leads there through that very interface.

    ## Why it matters
    RDMA packets leave by the interface of their GID, whatever the default route says. Without a route there
    `ibv_modify_qp` fails with `Network is unreachable`, or the job waits for a time-out. A typing error in one
    address or prefix length of eight is enough.

    ## Seen as
    hangs, does not start

    ## How we know
    GIDs, the addresses of the interfaces, and the kernel's main routing table; routes by rule (`ip rule`) are not
    seen, so this is a warning. Each node is compared with the next one.

    ## Fix
    - **admin** correct address or prefix length, or add a route: `ip route add NETWORK via GATEWAY dev NETDEV`.
    - **you** `ib_write_bw -d mlx5_0 -x 3 PEER` proves it.

    ## Source
    NVIDIA/nccl-tests#185, NVIDIA/nccl#2013; ip-route(8).
    """
    rails: dict[str, list[tuple[Node, UsedPort, Interface, Gid]]] = {}
    for node, port in carrying.roce_ports(cluster):
        taken, card = wiring.gid(node, port), interface_of(node, port)
        if taken and taken.gid and card:
            rails.setdefault(port.name, []).append((node, port, card, taken.gid))
    pairs = [
        (a, b) for rail in rails.values() for a, b in zip(rail, rail[1:] + rail[:1], strict=True) if a is not b
    ]
    if not pairs:
        raise NothingToJudge("no two nodes with RoCE addresses on an HCA of the same name")
    for (node, port, card, _), (peer, _, _, gid) in pairs:
        target = address_of(gid)
        if not is_routable(gid) or reaches(node, card, str(target)):
            continue
        yield warn(
            Where(node=node.name, device=port.name, peer=peer.name),
            f"no route from {card.name} leads to {target}, the RoCE address of {peer.name}",
            why="Connecting over RDMA ends with `Network is unreachable` or a time-out.",
            owner="node",
            evidence=[seen(f"addresses of {card.name}", _addresses(card)), seen(f"GID of {peer.name}", target)],
            fix=[admin("Correct the address or add a route.", f"ip route get {target} oif {quote(card.name)}")],
        )


def _addresses(card: Interface) -> str:
    return ", ".join(f"{address.address}/{address.prefix}" for address in value_or(card.addresses, [])) or "none"


def reaches(node: Node, card: Interface, target: str) -> bool:
    """Whether an address is in a subnet of this interface, or a route of the main table leads there by it."""
    own = [f"{address.address}/{address.prefix}" for address in value_or(card.addresses, [])]
    routes = value_or(at(node, "network.routes"), [])
    return any(
        _inside(target, net) for net in [*own, *(r.destination for r in routes if r.interface == card.name)]
    )


@lru_cache(maxsize=65536)
def _inside(target: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(target) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
