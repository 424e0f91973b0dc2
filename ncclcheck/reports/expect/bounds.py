"""What the bus bandwidth of an operation can be on this cluster, and what healthy clusters reach."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ncclcheck.probes.facts import Cluster, Node
from ncclcheck.reports.expect import formulas, inside, outside
from ncclcheck.reports.expect.inside import Inside
from ncclcheck.reports.expect.outside import Rate
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.subjects.nccl.variables import parse_int, values

Carrier = Literal["rdma", "socket", "burst", "nvlink"]

_RINGS = ("all_reduce", "all_gather", "reduce_scatter")
_RINGS_OF_GLOO = ("all_reduce", "all_gather")
_EXCHANGES = (*_RINGS, "gather", "scatter")


@dataclass(frozen=True)
class BandwidthBound:
    """busbw in GB/s. usual: what shares are of, None where no healthy cluster tells (`unusual` says why).

    best: what the best algorithm may reach; limit: what nothing passes, None where a burst is all that is known.
    algorithm: of which `usual` is the bound; known: whether it is surely the one that ran. at_line_rate: whether
    `usual` is the whole network of a node.
    """

    carrier: Carrier
    best: float
    basis: str
    limit: float | None = None
    usual: float | None = None
    unusual: str = ""
    algorithm: str = "ring"
    known: bool = False
    at_line_rate: bool = False


@dataclass(frozen=True)
class Ground:
    """What all operations of a job share: its shape, what a node sends, what its GPUs exchange."""

    ranks: int
    nodes: int
    gloo: bool = False
    network: Rate | None = None
    within: Inside | None = None
    algorithms: str = ""
    collnet: bool = False

    @property
    def own(self) -> int:
        """Ranks of a node."""
        return self.ranks // self.nodes


def ground(cluster: Cluster, ranks: int, nodes: int) -> Ground | str:
    """What the bounds of a job stand on; else why nothing can be expected. Raises NotKnown for an unread fact."""
    if cluster.job.simulated:
        return "one machine's memory carries all traffic; these figures say nothing about a network"
    if ranks < 2:
        return "one rank sends nothing to others"
    if nodes < 1 or ranks % nodes or nodes * max(1, cluster.job.jobs) != len(cluster.nodes):
        return "not every node has reported its facts, or ranks are spread unevenly"
    gloo = lan.uses_gloo(cluster)
    if gloo and nodes == 1:
        return "no link between nodes is used; these figures say nothing about a network"
    if nodes > 1 and inside.one_domain(cluster):
        return "NVLink joins the GPUs of all nodes, and what is reached there is published for whole racks only"
    network = outside.slowest(cluster, ranks // nodes) if nodes > 1 else None
    within = inside.slowest(cluster, ranks // nodes) if ranks > nodes and not gloo else None
    for limit in (network, within):
        if isinstance(limit, str):
            return limit
    first = cluster.nodes[0]
    return Ground(
        ranks=ranks,
        nodes=nodes,
        gloo=gloo,
        network=network if isinstance(network, Rate) else None,
        within=within if isinstance(within, Inside) else None,
        algorithms=values(first).get("NCCL_ALGO", "").lower(),
        collnet=_collnet(first),
    )


def _collnet(node: Node) -> bool:
    return parse_int(values(node).get("NCCL_COLLNET_ENABLE", "")).value not in (None, 0)


def bound(on: Ground, op: str) -> BandwidthBound | None:
    """The bound of an operation; None for one that has no bus bandwidth."""
    if op not in (*_EXCHANGES, "all_to_all", "broadcast", "reduce", "sendrecv"):
        return None
    return _between(on, on.network, op) if on.network else _alone(on, on.within, op) if on.within else None


def _between(on: Ground, network: Rate, op: str) -> BandwidthBound:
    """Several nodes: the network, and on the way to it the GPUs of a node."""
    rate = network.gb_s
    most = {"all_to_all": formulas.all_to_all(rate, on.ranks, on.nodes)}
    best = most.get(op, formulas.outside(rate, on.ranks, on.nodes) if op in _EXCHANGES else rate)
    switches = formulas.in_network(rate, on.ranks)
    if op == "all_reduce" and on.collnet:
        best = max(best, switches)
    limit = max(best, switches) if op == "all_reduce" and network.carrier == "rdma" else best
    usual, unusual = _usual(on, network, op)
    basis = network.text
    if on.within:
        widest = _widened(on, max(on.within.ring or 0.0, on.within.in_switch or 0.0)) or best
        nearest = limit if on.within.nvlink else on.within.most(op)
        basis += f"; {on.within.text}" if min(widest, nearest) < best else ""
        best, limit = min(best, widest, nearest), min(limit, nearest)
    return BandwidthBound(
        carrier=network.carrier,
        best=best,
        basis=basis,
        limit=limit if network.limited else None,
        usual=usual,
        unusual=unusual,
        known=on.gloo or _forced(on.algorithms, op),
        at_line_rate=usual == network.gb_s,
    )


def _usual(on: Ground, network: Rate, op: str) -> tuple[float | None, str]:
    """A flat ring: one stream into every node and one out of it, however many ranks it has."""
    if op not in (_RINGS_OF_GLOO if on.gloo else _RINGS):
        return None, f"no figures of healthy clusters are known for {op}"
    if network.unusual:
        return None, network.unusual
    if on.within and on.within.ring is None:
        return None, on.within.unusual
    ring = _widened(on, on.within.ring) if on.within and on.within.ring else network.gb_s
    return min(network.gb_s, ring), ""


def _widened(on: Ground, busbw: float) -> float:
    return formulas.widened(busbw, on.own, on.ranks)


def _alone(on: Ground, within: Inside, op: str) -> BandwidthBound:
    """One node: NVLink or PCIe."""
    reduces = op == "all_reduce" and within.in_switch is not None and not _forced(on.algorithms, op)
    usual = within.in_switch if reduces else within.ring
    unusual = within.unusual or ("" if op in _RINGS else f"no figures of healthy nodes are known for {op}")
    limit = within.most(op)
    published = max(within.ring or 0.0, (within.in_switch or 0.0) if op == "all_reduce" else 0.0)
    return BandwidthBound(
        carrier="nvlink",
        best=published if published and op in _RINGS else limit,
        basis=within.text,
        limit=limit,
        usual=None if unusual else usual,
        unusual=unusual,
        algorithm="NVLS" if reduces else "ring",
        known=_forced(on.algorithms, op),
    )


def _forced(algorithms: str, op: str) -> bool:
    """Whether NCCL_ALGO leaves the ring alone for this operation: `ring`, or `allreduce:ring` since 2.24."""
    name = op.replace("_", "")
    match = re.search(rf"(?:^|;)\s*{name}:([^;]+)", algorithms)
    return (match[1] if match else algorithms).strip() == "ring"
