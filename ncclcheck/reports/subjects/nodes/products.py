"""What machines are built with, by their product name: for those that are made in one way alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ncclcheck.probes.facts import Hca, Node, at, value_or
from ncclcheck.reports.subjects.nccl import wiring


@dataclass(frozen=True)
class Product:
    """A product by its name, in the table a pattern. cards: of its RDMA devices those for data; None: any number.

    cloud: how many cards there are was chosen when the machine was started, up to this number.
    """

    name: str
    gpus: int
    cards: int | None
    what: str
    cloud: bool = False


# DGX: the cards for data have one function each, those for storage two. HGX boards of other makers are built in
# many ways, and what other clouds write into DMI does not say which size of machine it is.
# Source: NVIDIA DGX user guides; Amazon EC2 user guide, accelerated computing instances, and EFA.
_PRODUCTS = (
    Product(r"\bDGX-?1\b", 8, 4, "HCAs"),
    Product(r"\bDGX-2\b", 16, 8, "HCAs"),
    Product(r"\bDGX ?A100\b", 8, 8, "HCAs"),
    Product(r"\bDGX ?H[12]00\b", 8, 8, "HCAs"),
    Product(r"\bDGX ?B200\b", 8, 8, "HCAs"),
    Product(r"\bp4de?\.24xlarge\b", 8, 4, "EFA devices", cloud=True),
    Product(r"\bp5e?\.48xlarge\b", 8, 32, "EFA devices", cloud=True),
    Product(r"\bp5en\.48xlarge\b", 8, 16, "EFA devices", cloud=True),
    Product(r"\bp6-b200\.48xlarge\b", 8, 8, "EFA devices", cloud=True),
    Product(r"\bp3dn\.24xlarge\b", 8, None, "EFA devices", cloud=True),
    Product(r"\bg(5|6|6e)\.(12|24)xlarge\b", 4, None, "EFA devices", cloud=True),
    Product(r"\bg(5|6|6e)\.48xlarge\b", 8, None, "EFA devices", cloud=True),
)


def product(node: Node) -> Product | None:
    """What the node is, where that tells what it is built with."""
    text = value_or(at(node, "fabric.product"), "")
    matches = ((known, re.search(known.name, text)) for known in _PRODUCTS)
    return next((replace(known, name=match[0]) for known, match in matches if match), None)


def data_cards(node: Node, built: Product) -> list[Hca]:
    """The RDMA devices that count: EFA, or those that are alone on their PCIe slot."""
    if built.cloud:
        return wiring.efa(node)
    devices = value_or(at(node, "rdma.devices"), [])
    virtual = {function.name for function in wiring.functions(node) if function.virtual_function}
    own = [device for device in devices if value_or(device.pci, "") not in virtual and "bond" not in device.name]
    slots = [value_or(device.pci, "").partition(".")[0] for device in own]
    return [device for device, slot in zip(own, slots, strict=True) if slots.count(slot) == 1]
