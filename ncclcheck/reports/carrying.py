"""Which HCAs carry the data: NCCL takes, for each GPU, those with the widest way to it, and of these the nearest.

Source: NVIDIA/nccl src/graph/paths.cc and topo.cc (ncclTopoGetLocal), 2.23 to 2.27; the differential tests hold it
against the library.
"""

from __future__ import annotations

from collections.abc import Sequence

from ncclcheck.probes.facts import Node, PciDevice, Unread, value_or
from ncclcheck.reports import wiring
from ncclcheck.reports.hca import UsedPort

# GB/s a lane at this transfer rate, as NCCL reckons them.
_LANE_GB_S = {2.5: 0.1875, 5.0: 0.375, 8.0: 0.75, 16.0: 1.5, 32.0: 3.0, 64.0: 6.0}
_BETWEEN_SOCKETS_GB_S = (6.0, 40.0)  # by the processor: NCCL's figures for old Xeons and for those from 2023 on
_FAR = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 2, "SYS": 3}  # NCCL knows no NODE: it is one processor


def carrying(node: Node, ports: Sequence[UsedPort]) -> list[UsedPort]:
    """Those of the ports that carry data; all of them where a place is not known, or where no GPU is."""
    functions = {device.name: device for device in wiring.functions(node)}
    gpus = [one for one in functions.values() if one.kind == "gpu"]
    places = [functions.get(value_or(port.hca.pci, "")) for port in ports]
    ways = [[_ways(gpu, port, place) for port, place in zip(ports, places, strict=True)] for gpu in gpus]
    if not gpus or any(way is None for of_gpu in ways for way in of_gpu):
        return list(ports)
    taken = {index for of_gpu in ways for index in _best([way for way in of_gpu if way is not None])}
    return [port for index, port in enumerate(ports) if index in taken]


Way = tuple[tuple[float, int], ...]


def _ways(gpu: PciDevice, port: UsedPort, place: PciDevice | None) -> Way | None:
    """Width, and nearness as a number that grows, with each figure for the way between sockets."""
    far = wiring.distance(gpu, place) if place else None
    if place is None or far is None:
        return None
    width = min(_width(gpu), _width(place), value_or(port.port.rate_gbit, float("inf")) / 8)
    return tuple((min(width, between) if far == "SYS" else width, -_FAR[far]) for between in _BETWEEN_SOCKETS_GB_S)


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
