"""RDM018 to RDM021: HCAs agree between nodes: how many, their firmware, their fabric, their partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Node, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fail, not_read, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import carrying, wiring
from ncclcheck.reports.subjects.nccl.hca import UsedPort
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements, group
from ncclcheck.reports.text.words.fold import fold_names


@rule(
    "RDM018",
    "all nodes would use RDMA, over the same number of links",
    worst=State.FAIL,
    at_least=2,
    between_machines=True,
)
def same_links(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The number of ports that NCCL would use is the same on all nodes with GPUs, and nowhere zero.

    ## Why it matters
    A node without a usable HCA takes sockets, the others InfiniBand: they cannot connect, and the job ends in
    `socketFinalizeAccept: wrong type 3 != 4` or hangs. With fewer HCAs than the others a node is slower, and
    NCCL 2.30 and later says that local devices differ. A lost card or a pod without its RDMA resource is enough.

    ## Seen as
    hangs, does not start, slow, dies

    ## How we know
    NCCL's choice by sysfs and NCCL_IB_HCA on each node, EFA devices counted as well; the odd one by majority.
    A node whose devices could not be read is left out and named. Fewer links that follow from a port that is
    down (RDM005, RDM006) or cannot be opened (RDM002) are reported there.

    ## Fix
    - **admin** find the missing card: `lspci | grep -i -e mellanox -e infiniband`, `dmesg | grep mlx5`.
    - **you** give all pods the same RDMA resource and all nodes the same NCCL_IB_HCA; or use sockets on all:
      `export NCCL_NET=Socket`.

    ## Source
    NVIDIA/nccl-tests#188, NVIDIA/nccl#229; facebookresearch/gcm, check-ibstat; NVIDIA/aicr#2689.
    """
    counts: dict[str, int] = {}
    for node in wiring.with_gpus(cluster):
        devices = at(node, "rdma.devices")
        if isinstance(devices, Unread) and devices.kind != "absent":
            yield _unread(node, devices)
        else:
            counts[node.name] = len(carrying.choice(node).used) + len(wiring.efa(node))
    if len(counts) < 2 or not any(counts.values()):
        raise NothingToJudge("fewer than two nodes of which any would use RDMA")
    if not all(counts.values()):
        yield _some_without(counts)
        return
    explained = _said_elsewhere([node for node in cluster.nodes if node.name in counts])
    compared = {name: count for name, count in counts.items() if name not in explained}
    if not compared:
        raise NothingToJudge("RDM005, RDM006 and RDM002 say what is missing on every node")
    yield from disagreements(
        compared,
        "the number of RDMA links that NCCL would use",
        "ports that NCCL would use",
        level=warn,
        why="The node with fewer links sets the pace of all.",
        owner="node",
        fix=[admin("Find the missing card or port.", "ibstat", "lspci | grep -i -e mellanox -e infiniband")],
    )


def _unread(node: Node, fact: Unread) -> Finding:
    return not_read(Where(node=node.name), "rdma.devices", fact)


def _said_elsewhere(nodes: list[Node]) -> set[str]:
    """Nodes with a port for data that is down, or with fewer HCAs that can be opened than others have."""
    opened = {node.name: _opened(node) for node in nodes}
    most = max(opened.values())
    names = {node.name for node in nodes if wiring.shut(node) and opened[node.name] < most}
    for node in nodes:
        taken = wiring.choice(node)
        if any(carrying.would_carry(node, taken.used, port) for port in taken.inactive):
            names.add(node.name)
    return names


def _opened(node: Node) -> int:
    return len({*value_or(at(node, "rdma.hcas"), [])} - wiring.shut(node))


def _some_without(counts: dict[str, int]) -> Finding:
    without = [node for node, count in counts.items() if not count]
    others = [node for node, count in counts.items() if count]
    return fail(
        Where(node=without[0] if len(without) == 1 else None),
        f"{fold_names(without)} would use TCP, {fold_names(others)} RDMA",
        why="Nodes with different networks cannot connect: `wrong type 3 != 4`, or a hang.",
        owner="node",
        evidence=[seen(fold_names(nodes), f"{count} ports") for count, nodes in group(counts).groups],
        fix=[
            admin("Find out why that node has none (RDM005, RDM010).", "ibstat", "ls /sys/class/infiniband"),
            you("Until then use sockets everywhere.", "export NCCL_NET=Socket"),
        ],
    )


@rule("RDM019", "HCAs of the same board have the same firmware", worst=State.WARN, needs=("rdma.devices",))
def firmware(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The firmware of all HCAs of one board, on each node and between nodes.

    ## Why it matters
    A card that was replaced, or a node that missed an update, behaves otherwise than the rest: other defaults for
    congestion control and relaxed ordering, errors long since fixed. It is a difference that nobody looks for
    when one node of many is slow.

    ## Seen as
    slow

    ## How we know
    fw_ver and board_id (PSID) in /sys/class/infiniband, the odd one by majority; boards are compared with their
    like only.

    ## Fix
    - **admin** `mlxfwmanager --online -u` or the vendor's tool, then a cold start; `flint -d DEVICE q` shows it.
    - **you** nothing; name the node to its administrator.

    ## Source
    facebookresearch/gcm, check-ibstat (bad_version); NVIDIA firmware tools, mlxfwmanager.
    """
    boards: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for node in wiring.with_gpus(cluster):
        for hca in known(at(node, "rdma.devices")):
            if isinstance(hca.firmware, str) and isinstance(hca.board, str) and hca.firmware:
                boards[hca.board][node.name].add(hca.firmware)
    if not boards:
        raise NothingToJudge("no HCA that reports its board and firmware")
    for board, nodes in boards.items():
        for name, versions in nodes.items():
            if len(versions) > 1:
                yield _several_versions(cluster, name, board)
        single = {name: next(iter(versions)) for name, versions in nodes.items() if len(versions) == 1}
        if len(single) > 1:
            yield from disagreements(
                single,
                f"the firmware of {board}",
                "fw_ver",
                level=warn,
                why=_OTHERWISE,
                owner="node",
                fix=[_UPDATE],
            )


_OTHERWISE = "Cards with other firmware have other defaults and errors: one of them may be slower."
_UPDATE = admin("Drain the node, and give all cards of a board the same firmware.", "mlxfwmanager --query")


def _several_versions(cluster: Cluster, name: str, board: str) -> Finding:
    node = next(node for node in cluster.nodes if node.name == name)
    versions = {
        hca.name: value_or(hca.firmware, "")
        for hca in known(at(node, "rdma.devices"))
        if hca.board == board and isinstance(hca.firmware, str)
    }
    groups = group(versions)
    odd = [hca for hca, _ in groups.odd]
    return warn(
        Where(node=name, device=fold_names(odd) if groups.majority else None),
        f"HCAs of board {board} have different firmware: {groups}",
        why=_OTHERWISE,
        owner="node",
        evidence=[seen("fw_ver", str(groups))],
        fix=[_UPDATE],
    )


@rule(
    "RDM020",
    "InfiniBand ports of a rail are in the same fabric on all nodes",
    worst=State.WARN,
    needs=("rdma.devices",),
    at_least=2,
    between_machines=True,
)
def same_fabric(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The HCA of one name has on all nodes the same subnet prefix and the same subnet manager.

    ## Why it matters
    Two ports with different prefixes or managers are in different fabrics: nothing sent by one reaches the other.
    Where each rail has a fabric of its own, a cable in the wrong socket puts two HCAs into each other's rail;
    the links are all up, and only some pairs of ranks hang.

    ## Seen as
    hangs

    ## How we know
    The first half of GID 0 and sm_lid of each InfiniBand port; one fabric has one manager, so all its ports know
    the same sm_lid. The odd node by majority. Where names were given in another order on one node, all its HCAs
    are odd: look at `ibdev2netdev` first.

    ## Fix
    - **admin** `ibnetdiscover` from that port shows which switch it is on; put the cable right.
    - **you** leave the node out until then.

    ## Source
    NVIDIA/nccl#2013 (rails without a route); opensm(8), ibnetdiscover(8).
    """
    rails: dict[str, dict[str, str]] = defaultdict(dict)
    for node, taken in carrying.using(cluster):
        for port in taken.used:
            if fabric := _fabric(port):
                rails[port.name][node.name] = fabric
    several = {rail: nodes for rail, nodes in rails.items() if len(nodes) > 1}
    if not several:
        raise NothingToJudge("no two nodes with an InfiniBand port of the same name")
    for rail, nodes in several.items():
        if group(nodes).agree:
            continue
        yield from disagreements(
            nodes,
            f"the fabric of {rail}",
            "GID 0 and sm_lid",
            level=warn,
            why="Ports in different fabrics cannot reach each other: some pairs of ranks hang.",
            owner="node",
            fix=[
                admin(
                    "See which switch the port is on, and where its cable should be.",
                    f"ibnetdiscover -C {rail.partition(':')[0]}",
                )
            ],
        )


def _fabric(port: UsedPort) -> str:
    gids, manager = port.port.gids, port.port.sm_lid
    if port.is_roce or isinstance(gids, Unread) or isinstance(manager, Unread) or not gids or not manager:
        return ""
    return f"{gids[0].gid[:19]}, manager at LID {manager}"


@rule(
    "RDM024",
    "an HCA name means the same PCIe slot on all nodes",
    worst=State.WARN,
    needs=("rdma.devices",),
    at_least=2,
    between_machines=True,
)
def same_slots(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    mlx5_0 is at the same PCI address on all nodes that have HCAs at the same addresses, and so are the others.

    ## Why it matters
    Names are given in the order in which the driver finds the cards, and that order may change with a boot or a
    hot plug. NCCL_IB_HCA then selects other cards on one node than on the rest, and NCCL before 2.29.7, which
    goes by the order of names, joins rail 0 of one node to rail 3 of another: slow on most fabrics, and no
    connection where each rail has switches of its own.

    ## Seen as
    slow

    ## How we know
    The PCI address behind each name in /sys/class/infiniband, the odd node by majority. Nodes whose cards are in
    other slots are not compared: they are other machines.

    ## Fix
    - **admin** give names by slot: `NAME_PCI` in rdma-core's rule 60-rdma-persistent-naming.rules, and reboot.
    - **you** until then use a list that holds all data HCAs, and NCCL 2.29.7 or later.

    ## Source
    facebookresearch/gcm (a misbound interface is one of its faults); NVIDIA/nccl#2013; rdma-core,
    rdma-persistent-naming.
    """
    slots: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for node, _ in wiring.choosing(cluster):
        named = sorted(wiring.hca_names(node).items())
        if named:
            slots[tuple(address for address, _ in named)][node.name] = ", ".join(name for _, name in named)
    several = [nodes for nodes in slots.values() if len(nodes) > 1]
    if not several:
        raise NothingToJudge("no two nodes with HCAs in the same slots")
    for nodes in several:
        if not group(nodes).agree:
            yield from disagreements(
                nodes,
                "the order of HCAs by slot",
                "/sys/class/infiniband/*/device",
                level=warn,
                why="NCCL_IB_HCA selects other cards there, and rails are joined crosswise.",
                owner="node",
                fix=[admin("Give names by slot.", "ls -l /sys/class/infiniband", "ibdev2netdev -v")],
            )
