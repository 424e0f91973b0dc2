"""Which HCAs carry the data: NCCL takes, for each GPU, those with the widest way to it, and of these the nearest.

Every rule about RDMA judges these alone: a card for storage or management that is ACTIVE is listed by NCCL and
left idle.

Source: NVIDIA/nccl src/graph/paths.cc and topo.cc (ncclTopoGetLocal), 2.23 to 2.27; the differential tests hold it
against the library.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ncclcheck.probes import facts
from ncclcheck.probes.facts import Cluster, Node, PciDevice, Unread, value_or
from ncclcheck.reports.judgement.derived import derived, derived_from
from ncclcheck.reports.judgement.rule import NothingToJudge
from ncclcheck.reports.subjects.nccl import wiring
from ncclcheck.reports.subjects.nccl.hca import HcaChoice, UsedPort

# GB/s a lane at this transfer rate, as NCCL reckons them.
_LANE_GB_S = {2.5: 0.1875, 5.0: 0.375, 8.0: 0.75, 16.0: 1.5, 32.0: 3.0, 64.0: 6.0}
_BETWEEN_SOCKETS_GB_S = (6.0, 40.0)  # by the processor: NCCL's figures for old Xeons and for those from 2023 on
_FAR = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 2, "SYS": 3}  # NCCL knows no NODE: it is one processor


def using(cluster: Cluster) -> list[tuple[Node, HcaChoice]]:
    """Nodes on which at least one port would carry data, with those alone as used. Raises NothingToJudge."""
    nodes = [(node, taken) for node, taken in choosing(cluster) if taken.used]
    if not nodes:
        raise NothingToJudge("no HCA that NCCL would use")
    return nodes


def choosing(cluster: Cluster) -> Iterator[tuple[Node, HcaChoice]]:
    """Nodes on which NCCL looks for HCAs, with the ports that would carry data as used. Raises NothingToJudge."""
    yield from ((node, choice(node)) for node, _ in wiring.choosing(cluster))


def roce_ports(cluster: Cluster) -> list[tuple[Node, UsedPort]]:
    """The RoCE ports that would carry data. Raises NothingToJudge."""
    ports = [(node, port) for node, taken in using(cluster) for port in taken.used if port.is_roce]
    if not ports:
        raise NothingToJudge("no RoCE port that NCCL would use")
    return ports


@derived
def choice(node: Node) -> HcaChoice:
    """NCCL's choice, less the ports that it lists and leaves idle, and those that serve Hyper-V's own."""
    served = wiring.of_hypervisor(node)
    return _without(node, served) if served else _of_all(node)


@derived_from("rdma", "fabric", "nccl", "job.variables")
def _of_all(node: Node) -> HcaChoice:
    return _without(node, frozenset())


def _without(node: Node, served: frozenset[str]) -> HcaChoice:
    taken = wiring.choice(node)
    able = [port for port in taken.used if port.hca.name not in served]
    return replace(taken, used=tuple(_meant(node, able)))


def _meant(node: Node, ports: Sequence[UsedPort]) -> list[UsedPort]:
    """Those that carry data, and those of their kind that would if their own link were not the slower one."""
    own = _own_ports(node, ports)
    taken, near = carrying(node, own), carrying(node, [_at_full_rate(port) for port in own])
    kinds, names = {kind(port) for port in taken}, {port.name for port in taken}
    names |= {port.name for port in near if kind(port) in kinds}
    return [port for port in own if port.name in names]


def would_carry(node: Node, up: Sequence[UsedPort], down: UsedPort) -> bool:
    """Whether a port that is down would carry data beside these if its link were up."""
    back = _at_full_rate(down)
    return back in carrying(node, [*up, back])


def _own_ports(node: Node, ports: Sequence[UsedPort]) -> list[UsedPort]:
    """Without virtual functions beside their own physical one: both are the same port."""
    virtual = {function.name for function in wiring.functions(node) if function.virtual_function}
    addresses = {port.name: value_or(port.hca.pci, "") for port in ports}
    physical = {_bus(address) for address in addresses.values() if address not in virtual} - {""}
    return [
        port for port in ports if not (addresses[port.name] in virtual and _bus(addresses[port.name]) in physical)
    ]


def _bus(address: str) -> str:
    """Functions of one card share it: 0000:1a of 0000:1a:00.2."""
    return address.rpartition(":")[0]


def _at_full_rate(port: UsedPort) -> UsedPort:
    """As if its link had come up at the rate that no other port exceeds."""
    return replace(port, port=facts.replace(port.port, rate_gbit=float("inf")))


def kind(port: UsedPort) -> str:
    """Cards of one kind have one board, or where that is unread one model."""
    return value_or(port.hca.board, "") or value_or(port.hca.model, "")


def carrying(node: Node, ports: Sequence[UsedPort]) -> list[UsedPort]:
    """Those of the ports that carry data; all of them where a place is not known, or where no GPU is."""
    places = tuple((port.hca.pci, port.port.rate_gbit) for port in ports)
    known = _by_places(node)
    if places not in known:
        known[places] = _carrying(node, ports)
    return [ports[index] for index in known[places]]


@derived_from("fabric", "nccl")
def _by_places(_: Node) -> dict[tuple[object, ...], list[int]]:
    """What was found for ports in these slots, at these rates: in nodes of one kind they are the same."""
    return {}


def _carrying(node: Node, ports: Sequence[UsedPort]) -> list[int]:
    functions = wiring.placed(node)
    gpus = [device for device in functions.values() if device.kind == "gpu"]
    places = [functions.get(value_or(port.hca.pci, "")) for port in ports]
    ways = [[_ways(node, gpu, port, place) for port, place in zip(ports, places, strict=True)] for gpu in gpus]
    if not gpus or any(way is None for of_gpu in ways for way in of_gpu):
        return [*range(len(ports))]
    return sorted({index for of_gpu in ways for index in _best([way for way in of_gpu if way is not None])})


Way = tuple[tuple[float, int], ...]


def _ways(node: Node, gpu: PciDevice, port: UsedPort, place: PciDevice | None) -> Way | None:
    """Width, and nearness as a number that grows, with each figure for the way between sockets."""
    far = (wiring.from_gpus(node)[gpu.name].get(place.name) or _in_a_flat_tree(node)) if place else None
    if place is None or far is None:
        return None
    width = min(_width(gpu), _width(place), value_or(port.port.rate_gbit, float("inf")) / 8)
    return tuple((min(width, between) if far == "SYS" else width, -_FAR[far]) for between in _BETWEEN_SOCKETS_GB_S)


def _in_a_flat_tree(node: Node) -> str | None:
    """A virtual machine may show no bridges and no NUMA nodes: there NCCL sees all cards at one distance."""
    return "PHB" if wiring.is_virtual(node) else None


def _width(device: PciDevice) -> float:
    """Of its PCIe link at its best; not known is no limit."""
    link = device.link
    return (
        float("inf") if isinstance(link, Unread) else _LANE_GB_S.get(link.most_gts, float("inf")) * link.most_width
    )


def _best(ways: Sequence[Way]) -> set[int]:
    """The first of one GPU's ways, whichever figure holds."""
    if not ways:
        return set()
    columns = range(len(_BETWEEN_SOCKETS_GB_S))
    most = [max(way[column] for way in ways) for column in columns]
    return {index for index, way in enumerate(ways) if any(way[column] == most[column] for column in columns)}
