"""Where the topology file that NCCL reads places PCI functions; what stands in it counts more than /sys.

NCCL writes a switch as one element, sysfs as the port towards the root and one port for each device below. The
paths here are sysfs's, so that both are compared by the same function.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from xml.etree import ElementTree

from ncclcheck.probes.facts import PciDevice, PcieLink, Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.devices import pci

OF_THE_MACHINE = "/var/run/nvidia-topologyd/virtualTopology.xml"  # read where NCCL_TOPO_FILE is not set
_MOST_BYTES, _MOST_DEVICES = 2**20, 1024  # a machine has tens of cards, 50 to 200 bytes of XML each
_MOST_ABOVE = 64  # ports of switches above a card; PCIe trees of machines have less than ten
_BRIDGE, _DISPLAY, _NETWORK = "0x0604", "0x03", "0x02"
_GT_S = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s")


def topology(machine: Machine, settings: Mapping[str, str]) -> list[PciDevice] | Unread:
    """The GPUs and network cards of the file that is in force; none where there is no file."""
    text = machine.read(settings.get("NCCL_TOPO_FILE") or OF_THE_MACHINE, _MOST_BYTES)
    if isinstance(text, Unread):
        return [] if text.kind == "absent" else text
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        return Unread("broken", "the topology file declares a type of document, which NCCL's parser does not know")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        return Unread("broken", f"the topology file: {error}")
    return list(_devices(root))[:_MOST_DEVICES]


def _devices(root: ElementTree.Element) -> Iterator[PciDevice]:
    """Every function that is no bridge, below the processor whose element is the nearest one above it."""
    open_ones: list[tuple[ElementTree.Element, str, list[str]]] = [(root, "", [])]
    while open_ones:
        element, cpu, path = open_ones.pop()
        if element.tag == "cpu":
            cpu, path = f"cpu{element.get('numaid', '')[:9]}", []
        name = element.get("busid", "").lower()
        if element.tag == "pci" and pci.ADDRESS.fullmatch(name):
            if element.get("class", "").startswith(_BRIDGE):
                path = [*path, name][:_MOST_ABOVE]
            else:
                yield _device(element, name, cpu, path)
        open_ones += [
            (child, cpu, [*path, f"{name}>{child.get('busid', '')[:20]}"] if path else []) for child in element
        ]


def _device(element: ElementTree.Element, name: str, cpu: str, path: list[str]) -> PciDevice:
    kind = "gpu" if element.get("class", "").startswith(_DISPLAY) else "nic"
    return PciDevice(name=name, kind=kind, root=cpu, path=path, numa_node=_number(cpu[3:]), link=_link(element))


def _number(text: str) -> int | Unread:
    return int(text) if re.fullmatch(r"-?\d{1,5}", text, re.ASCII) else Unread("absent", "no numaid")


def _link(element: ElementTree.Element) -> PcieLink | Unread:
    speed = _GT_S.match(element.get("link_speed", ""))
    width = element.get("link_width", "")
    if speed is None or not re.fullmatch(r"\d{1,2}", width, re.ASCII):
        return Unread("absent", "the topology file has no speed or width")
    return PcieLink(gts=float(speed[1]), width=int(width), most_gts=float(speed[1]), most_width=int(width))
