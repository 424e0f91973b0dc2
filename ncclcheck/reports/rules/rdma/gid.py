"""RDM013, RDM014: the GID (address) that NCCL would take on a RoCE port is one that is routed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import ip_address
from shlex import quote

from ncclcheck.probes.facts import Address, Cluster, Gid, Interface, Node, Unread, at, replace, value_or
from ncclcheck.reports.judgement.findings import (
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    note,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import carrying, wiring
from ncclcheck.reports.subjects.nccl.hca import (
    AUTOMATIC_GID_SINCE,
    GidChoice,
    HcaChoice,
    UsedPort,
    address_of,
    automatic_gid,
    family_of,
    is_routable,
    roce_version,
)
from ncclcheck.reports.subjects.nccl.variables import effective, nccl_version, values
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements
from ncclcheck.reports.text.words.fold import fold_names


def _said(gid: Gid) -> str:
    return f"{address_of(gid)} ({value_or(gid.type, 'type unread')})"


@rule(
    "RDM013",
    "every RoCE port has a GID that is routable between nodes",
    worst=State.FAIL,
    needs=("rdma.devices",),
    ground=("RDM005", "RDM006"),
)
def gid(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The GID that NCCL would use on each RoCE port is a RoCE v2 GID with a real IP address.

    ## Why it matters
    A GID table holds entries for the link-local address and for RoCE v1 too. Neither passes a router, and
    often no switch: the job connects over TCP, then ends with `status=12 vendor err 129` or with
    `ibv_modify_qp failed`. A port whose interface has no IP address has no other entries.

    ## Seen as
    dies

    ## How we know
    gids and gid_attrs in sysfs, with NCCL's own rule. Up to 2.20: index 0, or NCCL_IB_GID_INDEX. Since 2.21: the
    last entry that fits best by NCCL_IB_ADDR_FAMILY (IPv4), NCCL_IB_ROCE_VERSION_NUM (2) and NCCL_IB_ADDR_RANGE.
    A node with a port for data that is down (RDM005, RDM006) is left out: NCCL falls back to what is left there.
    An entry whose IPv6 address failed duplicate address detection (dadfailed) is a failure.
    An entry that NCCL_IB_GID_INDEX names is judged by RDM014. A port without any
    routed address is a warning on one machine alone, and a note where no other port has one: its GPUs do not need
    the network. The HCA of Azure's accelerated networking has none by design: its address is that of the
    interface of Hyper-V, and where it is the only one NCCL has to be kept from it.

    ## Fix
    - **you** with NCCL up to 2.20 `export NCCL_IB_GID_INDEX=3`, or the index that the finding names; later
      versions need nothing.
    - **admin** give the port's interface an address and bring it up: `ip addr add`, `show_gids`.

    ## Source
    NVIDIA/nccl#426, NVIDIA/nccl#769, NVIDIA/nccl#1573; NCCL user guide, NCCL_IB_GID_INDEX.
    """
    served = [_of_hypervisor(node) for node, taken in carrying.choosing(cluster) if _serves_hyper_v(node, taken)]
    if served and len(cluster.nodes) > 1:
        yield from served
        if len(served) == len(cluster.nodes):
            return
    well: dict[str, list[str]] = {}
    for node, port in carrying.roce_ports(cluster):
        taken = wiring.gid(node, port)
        if taken is None:
            yield _unread_table(node, port)
        elif taken.gid and (twice := _refused(node, taken.gid)):
            yield _twice(node, port, taken.gid, twice)
        elif not taken.asked and (finding := _wrong_gid(node, port, taken)):
            alone = len(cluster.nodes) == 1 and _better(port) is None
            yield _of_one_machine(node, finding) if alone else finding
        elif taken.gid and not taken.asked:
            well.setdefault(node.name, []).append(f"{port.name} {address_of(taken.gid)}")
    yield from (fine(Where(node=name), f"RoCE v2 GIDs: {', '.join(gids)}") for name, gids in well.items())


def _refused(node: Node, gid: Gid) -> Address | None:
    """The address of this entry where the kernel refused it, for another machine has it too."""
    interfaces: list[Interface] = value_or(at(node, "network.interfaces"), [])
    for interface in interfaces:
        addresses: list[Address] = value_or(interface.addresses, []) if interface.name == gid.netdev else []
        for address in addresses:
            if address.state == "duplicate" and ip_address(address.address) == address_of(gid):
                return address
    return None


def _twice(node: Node, port: UsedPort, gid: Gid, address: Address) -> Finding:
    whole, name = f"{address.address}/{address.prefix}", quote(str(gid.netdev))
    return fail(
        Where(node=node.name, device=port.name),
        f"the address of GID {gid.index}, {address.address} on {gid.netdev}, failed duplicate address detection",
        why="Another machine on this wire has it: the kernel answers for it no more, and RDMA meets that one.",
        owner="node",
        evidence=[seen("ip -6 addr", f"{whole} dadfailed"), seen(f"GID {gid.index}", _said(gid))],
        fix=[
            admin(
                "Take the address from the other machine, or give this one another; then let it look anew.",
                f"ip -6 addr show dev {name}   # on {node.name}",
                f"ip addr del {whole} dev {name} && ip addr add {whole} dev {name}   # on {node.name}",
            )
        ],
    )


def _serves_hyper_v(node: Node, taken: HcaChoice) -> bool:
    """Whether NCCL would list ports, and all of them serve an interface of Hyper-V."""
    return not taken.used and bool(wiring.choice(node).used) and bool(wiring.of_hypervisor(node))


def _of_hypervisor(node: Node) -> Finding:
    names = fold_names(wiring.choice(node).names)
    return warn(
        Where(node=node.name, device=names),
        f"NCCL would use {names}, which only serves Azure's accelerated networking",
        why="It is ACTIVE, but its address is that of Hyper-V's interface: peers cannot reach it.",
        owner="job",
        evidence=[seen("gids", f"{names}: none that is routed"), seen("driver", "hv_netvsc")],
        fix=[you("Let NCCL take TCP, which is all that this machine has.", "export NCCL_IB_DISABLE=1")],
    )


def _of_one_machine(node: Node, finding: Finding) -> Finding:
    """The same of a machine alone, whose GPUs do not need the network."""
    others = wiring.has_rdma(node)
    why = f"It would matter with a second machine: {finding.why[0].lower()}{finding.why[1:]}"
    state = min((finding.state, State.WARN if others else State.NOTE), key=lambda level: -level.rank)
    return replace(finding, state=state, why=why)


def _unread_table(node: Node, port: UsedPort) -> Finding:
    why = port.port.gids.why if isinstance(port.port.gids, Unread) else ""
    return unknown(
        Where(node=node.name, device=port.name),
        f"its GID table could not be read: {why}",
        why="Not observed, so neither healthy nor faulty.",
        evidence=[seen("gids", why)],
    )


def _wrong_gid(node: Node, port: UsedPort, taken: GidChoice) -> Finding | None:
    if taken.gid and is_routable(taken.gid) and roce_version(taken.gid) != 1:
        return None
    better = _better(port)
    evidence = [
        seen(f"GID {taken.index}", _said(taken.gid) if taken.gid else "empty"),
        seen("chosen", taken.reason),
    ]
    fix = _address()
    if better is not None:
        fix = [you("Name the entry that is routed.", f"export NCCL_IB_GID_INDEX={better.index}")]
    routed = taken.gid is not None and is_routable(taken.gid)
    state = "of RoCE v1" if routed else "link-local" if taken.gid else "empty"
    why = "RoCE v1 passes no router." if routed else "Packets of it reach no other node: status 12, or a time-out."
    return (warn if routed else fail)(
        Where(node=node.name, device=port.name),
        f"NCCL would use GID {taken.index}, which is {state}",
        why=why,
        owner="job" if better else "node",
        evidence=evidence,
        fix=fix,
    )


def _address() -> list[Remedy]:
    """Where the port has no routed entry at all."""
    return [admin("Give the interface of the port an IP address and bring it up.", "show_gids", "ip addr show")]


def _better(port: UsedPort) -> Gid | None:
    """An entry that would do: RoCE v2, routable, IPv4 first."""
    gids = [gid for gid in value_or(port.port.gids, []) if roce_version(gid) == 2 and is_routable(gid)]
    return min(gids, key=lambda gid: (family_of(gid), gid.index), default=None)


@rule(
    "RDM014",
    "NCCL_IB_GID_INDEX names an existing entry of the same type on all nodes",
    worst=State.FAIL,
    needs=("rdma.devices", "job.variables"),
)
def gid_index(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Where NCCL_IB_GID_INDEX is set: each RoCE port has such an entry, it is a routed RoCE v2 one, and of the same
    kind on all nodes.

    ## Why it matters
    The index of an address depends on the order in which addresses were given: it moves with a reboot, with a
    second address, in a container. An empty entry ends in `ibv_modify_qp failed with Invalid argument`, one of
    another kind in status 12 after a time-out.

    ## Seen as
    hangs, dies

    ## How we know
    The GID table of each port that NCCL would use. Since NCCL 2.21 the choice is automatic and NVIDIA says that
    the variable should not be set; where it names what NCCL would take anyway, that is a note. Since 2.22 it is
    not read for InfiniBand ports.

    ## Fix
    - **you** `unset NCCL_IB_GID_INDEX` with NCCL 2.21 and later; with several networks set
      `NCCL_IB_ADDR_RANGE=10.1.0.0/16` instead.
    - **admin** take it out of /etc/nccl.conf and /etc/environment of the image.

    ## Source
    NCCL user guide, NCCL_IB_GID_INDEX; NVIDIA/nccl#426, NVIDIA/nccl#769.
    """
    ports = [
        (node, used)
        for node, used in carrying.roce_ports(cluster)
        if (taken := wiring.gid(node, used)) and taken.asked
    ]
    if not ports:
        raise NothingToJudge("NCCL_IB_GID_INDEX is not set")
    kinds: dict[str, str] = {}
    for node, port in ports:
        taken = wiring.gid(node, port)
        if taken is None or taken.gid is None:
            yield _wrong_index(node, port, fail, "is empty", "Connecting ends with `Invalid argument`.")
        elif not is_routable(taken.gid):
            yield _wrong_index(node, port, fail, "is link-local", "Packets of it do not reach other nodes.")
        elif roce_version(taken.gid) == 1:
            yield _wrong_index(node, port, warn, "is of RoCE v1", "RoCE v1 passes no router.")
        else:
            kinds[node.name] = f"RoCE v2 of IPv{family_of(taken.gid)}"
            yield from _needless(node, port, taken)
    if len(kinds) > 1:
        yield from disagreements(
            kinds,
            "the GID that NCCL_IB_GID_INDEX names",
            "gids",
            level=fail,
            why="Nodes with addresses of different kinds cannot connect.",
            owner="job",
            fix=[you("Leave the choice to NCCL 2.21 and later.", "unset NCCL_IB_GID_INDEX")],
        )


def _wrong_index(node: Node, port: UsedPort, level: Callable[..., Finding], state: str, why: str) -> Finding:
    setting, better = effective(node)["NCCL_IB_GID_INDEX"], _better(port)
    automatic = (nccl_version(node) or AUTOMATIC_GID_SINCE) >= AUTOMATIC_GID_SINCE
    fix = _address()  # no other index would do
    if better is not None:
        command = "unset NCCL_IB_GID_INDEX" if automatic else f"export NCCL_IB_GID_INDEX={better.index}"
        fix = [you("Let NCCL choose, or name an entry that is routed.", command)]
    return level(
        Where(node=node.name, device=port.name),
        f"GID {setting.value}, which NCCL_IB_GID_INDEX names, {state}",
        why=why,
        owner="job" if better else "node",
        evidence=[
            seen(setting.source, f"NCCL_IB_GID_INDEX={setting.value}"),
            seen(
                "gids",
                ", ".join(f"{gid.index} {_said(gid)}" for gid in value_or(port.port.gids, [])[:8]) or "none",
            ),
        ],
        fix=fix,
    )


def _needless(node: Node, port: UsedPort, taken: GidChoice) -> Iterator[Finding]:
    if (nccl_version(node) or (0, 0, 0)) < AUTOMATIC_GID_SINCE:
        return
    if automatic_gid(value_or(port.port.gids, []), values(node)) == taken.index:
        yield note(
            Where(node=node.name),
            f"NCCL_IB_GID_INDEX={taken.index} is what NCCL would choose by itself",
            why="An index that is fixed goes wrong when the table changes.",
            fix=[you("Take it out.", "unset NCCL_IB_GID_INDEX")],
        )
