"""RDM060, RDM061: each rail is on its own leaf switch, and rails that must reach each other can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ncclcheck.probes.facts import Cluster, Leaf, Node, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import (
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fine,
    note,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.rules.rdma.roce import interface_of, reaches
from ncclcheck.reports.subjects.nccl import carrying, wiring
from ncclcheck.reports.subjects.nccl.hca import address_of, is_routable
from ncclcheck.reports.subjects.nccl.settings import settings_of
from ncclcheck.reports.text.words.fold import fold_names, many

Cabling = tuple[tuple[str, str], ...]  # slot or name of each HCA, and the identity of its switch


@rule("RDM060", "each HCA is cabled to the same leaf switch as on the other nodes", worst=State.WARN,
      needs=("rdma.devices",), at_least=2, between_machines=True)  # fmt: skip
def leaves(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Nodes that hang on the same leaf switches have each HCA on the same one of them.

    ## Why it matters
    In a rail-optimised fabric HCA k of every node is on leaf k: what goes from GPU k to GPU k crosses one switch.
    Two cables of a node in each other's socket send both rails of that node over the spine, where they meet all
    other traffic: the node is the slowest of each ring, with every link up and no error. Where rails are not
    joined, nothing reaches it.

    ## Seen as
    slow

    ## How we know
    The switch at the end of each cable: for Ethernet by LLDP, as systemd-networkd (/run/systemd/netif/lldp) or
    lldpd keeps it; for InfiniBand by `smpquery -D nodeinfo 0,PORT`, which needs /dev/infiniband/umad*. Nodes are
    compared where they have the same slots and at least half of their HCAs on the same switches. The same switches
    in another order than on at least two other nodes, and on two thirds of those that have them, is a warning. A
    switch that the others do not have is a note, and so is a draw: a fabric without rails is cabled in any order.

    ## Fix
    - **admin** change the two cables; look at the port's label in `ibnetdiscover` or `lldpctl` first.
    - **you** nothing; name the node to its administrator.

    ## Source
    imbue-ai/cluster-health (InfiniBand fabric checks); NVIDIA DGX SuperPOD reference architecture (rail-optimised
    fabric); NVIDIA/nccl#2013; IEEE 802.1AB, smpquery(8), systemd-networkd.service(8).
    """
    nodes = {node.name: node for node, _ in carrying.using(cluster)}
    cabling = {name: _cabling(node) for name, node in nodes.items()}
    cabled = {name: links for name, links in cabling.items() if len(links) > 1}
    if len(cabled) < 2:
        yield from _not_told(list(nodes.values()))
        return
    usual = Counter(cabled.values())
    of_switches = Counter(tuple(_switches(links)) for links in cabled.values())
    odd = {name: like for name, links in cabled.items() if (like := _like(links, usual)) is not None}
    for name, like in odd.items():
        others = [other for other, links in cabled.items() if links == like]
        most = len(others) >= 2 and len(others) * 3 >= of_switches[tuple(_switches(cabled[name]))] * 2
        yield _otherwise(nodes[name], cabled[name], like, others, crossed=most and _same(cabled[name], like))
    if not odd:
        yield fine(
            Where(), f"{many(len(cabled), 'node')} have each HCA on the leaf switch that it has on the others"
        )


def _not_told(nodes: list[Node]) -> Iterator[Finding]:
    """One for all nodes that a person with more rights could ask. Raises NothingToJudge."""
    denied = [
        fact for node in nodes if isinstance(fact := at(node, "rdma.leaves"), Unread) and fact.kind == "denied"
    ]
    if len(denied) < 2:
        raise NothingToJudge("of fewer than two nodes the switches of several HCAs are known")
    yield unknown(
        Where(),
        f"the leaf switches of {many(len(denied), 'node')} could not be asked: {denied[0].why}",
        why="Two cables in each other's socket slow a node down, and no counter shows it.",
        owner="site",
        evidence=[seen("rdma.leaves", denied[0].why)],
        fix=[admin("Run it as root once, after the cables were touched.", "ncclcheck env --only RDM060")],
    )


def _cabling(node: Node) -> Cabling:
    """Of the HCAs that carry data; by slot, for names may change from boot to boot."""
    data = {port.hca.name for port in carrying.choice(node).used}
    slots = {name: address for address, name in wiring.hca_names(node).items()}
    leafs: list[Leaf] = value_or(at(node, "rdma.leaves"), [])
    links = [(leaf.name.partition(":")[0], leaf.name.partition(":")[2], leaf.identity) for leaf in leafs]
    return tuple(sorted((f"{slots.get(hca, hca)}:{port}", switch) for hca, port, switch in links if hca in data))


def _like(links: Cabling, usual: Mapping[Cabling, int]) -> Cabling | None:
    """The most frequent other cabling that a node was meant to have; None where its own is as good."""
    near = [other for other in usual if other != links and _is_near(links, other) and usual[other] >= usual[links]]
    return max(near, key=lambda other: usual[other], default=None)


def _is_near(links: Cabling, other: Cabling) -> bool:
    if [slot for slot, _ in links] != [slot for slot, _ in other]:
        return False
    same = sum(a == b for a, b in zip(links, other, strict=True))
    return _same(links, other) or same * 2 >= len(links)


def _same(links: Cabling, other: Cabling) -> bool:
    return _switches(links) == _switches(other)


def _switches(links: Cabling) -> list[str]:
    return sorted(switch for _, switch in links)


def _otherwise(node: Node, links: Cabling, like: Cabling, others: list[str], *, crossed: bool) -> Finding:
    names = {leaf.identity: f"{leaf.switch}" for leaf in known(at(node, "rdma.leaves"))}
    hcas = dict(wiring.hca_names(node))
    moved = [(slot, switch) for (slot, switch), usual in zip(links, like, strict=True) if (slot, switch) != usual]
    shown = ", ".join(f"{_hca(slot, hcas)} on {names.get(switch, switch)}" for slot, switch in moved[:8])
    what = "in another order" if _same(links, like) else "to another leaf switch"
    level = warn if crossed else note
    return level(
        Where(node=node.name, device=_hca(moved[0][0], hcas) if len(moved) == 1 else None),
        f"{many(len(moved), 'HCA')} cabled {what} than on {fold_names(others)}: {shown}",
        why="Its traffic crosses the spine where that of the others stays on one switch, or reaches nobody.",
        owner="site",
        evidence=[seen(leaf.told_by, f"{leaf.name}: {leaf.switch} port {leaf.port}")
                  for leaf in known(at(node, "rdma.leaves"))[:8]],
        fix=_SEE,
    )  # fmt: skip


def _hca(slot: str, hcas: Mapping[str, str]) -> str:
    address = slot.rpartition(":")[0]
    return hcas.get(address, address)


_SEE: list[Remedy] = [
    admin("Compare the ports with the cabling plan, and put the cables right.", "iblinkinfo -l", "lldpctl")
]


@rule(
    "RDM061",
    "RoCE rails reach each other where NCCL is set to cross them",
    worst=State.WARN,
    needs=("rdma.devices", "network.interfaces", "network.routes"),
    at_least=2,
    between_machines=True,
)
def across(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Where NCCL_CROSS_NIC=1 or NCCL_PXN_DISABLE=1 is set, a route leads from each RoCE interface to the other rails
    of the other nodes.

    ## Why it matters
    By default NCCL keeps to rails: it sends from rail k to rail k, and through the GPU beside that rail where
    another one is meant (PXN). With NCCL_CROSS_NIC=1 rings go from one rail to another; with NCCL_PXN_DISABLE=1
    every send to a GPU of another rail does. Where each rail is a network of its own this ends with
    `ibv_modify_qp failed with 110 Connection timed out` or `101 Network is unreachable`: an all-reduce works, and
    the first all-to-all does not.

    ## Seen as
    hangs, does not start, dies

    ## How we know
    The two variables; the GIDs, the addresses of the interfaces and the main routing table. Where there are
    rules (`ip rule`) besides the usual ones, nothing is reported. That a route exists is not proof that its
    packets arrive.

    ## Fix
    - **you** `unset NCCL_CROSS_NIC NCCL_PXN_DISABLE`.
    - **admin** or route between the rails: one route a rail and node, and a gateway.

    ## Source
    NVIDIA/nccl#2013 (rails without a route), NVIDIA/nccl#1580; oracle-quickstart/oci-hpc (run_meshpinger.sh asks
    every pair of rails); NCCL user guide, NCCL_CROSS_NIC, NCCL_PXN_DISABLE.
    """
    rails = [
        (node, used, card, taken.gid)
        for node, used in carrying.roce_ports(cluster)
        if (taken := wiring.gid(node, used)) and taken.gid and (card := interface_of(node, used))
    ]
    crossing = {node.name: name for node, _, _, _ in rails if (name := _crosses(node))}
    if not crossing:
        raise NothingToJudge("NCCL keeps to its rails: NCCL_CROSS_NIC and NCCL_PXN_DISABLE are not 1")
    reported: set[str] = set()
    for node, port, card, _ in rails:
        if node.name in reported or node.name not in crossing or at(node, "network.rules"):
            continue
        lost = [
            (peer, other, address_of(gid))
            for peer, other, _, gid in rails
            if peer is not node and other.name != port.name and is_routable(gid)
            and not reaches(node, card, str(address_of(gid)))
        ]  # fmt: skip
        if lost:
            reported.add(node.name)
            peer, other, target = lost[0]
            yield _apart(node, crossing[node.name], card.name, f"{target} ({other.name} of {peer.name})")


def _crosses(node: Node) -> str:
    settings = settings_of(node)
    return next((name for name in ("NCCL_CROSS_NIC", "NCCL_PXN_DISABLE") if settings.number(name) == 1), "")


def _apart(node: Node, name: str, interface: str, target: str) -> Finding:
    return warn(
        Where(node=node.name),
        f"{name}=1 lets NCCL cross rails, and no route leads from {interface} to {target}",
        why="The first all-to-all, or ring that changes rails, waits for a time-out.",
        owner="job",
        evidence=[seen(name, "1"), seen("routes", f"none from {interface} to {target}")],
        fix=[you("Keep to the rails.", f"unset {name}"), admin("Or route between the rails.")],
    )
